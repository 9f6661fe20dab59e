// A growable array of trivial values on a 64-byte boundary, so that kernels may use aligned loads.
#pragma once

#include <cstddef>
#include <cstdlib>
#include <cstring>
#include <new>
#include <type_traits>
#include <utility>

namespace vericache {

template <typename T>
class AlignedBuffer {
  static_assert(std::is_trivially_copyable_v<T>);

 public:
  AlignedBuffer() = default;
  explicit AlignedBuffer(size_t size) { Resize(size); }
  AlignedBuffer(AlignedBuffer&& other) noexcept { Swap(other); }
  AlignedBuffer& operator=(AlignedBuffer&& other) noexcept {
    Swap(other);
    return *this;
  }
  AlignedBuffer(const AlignedBuffer&) = delete;
  AlignedBuffer& operator=(const AlignedBuffer&) = delete;
  ~AlignedBuffer() { std::free(data_); }

  // Grows without keeping the contents; never shrinks the allocation. Contents are undefined.
  void Resize(size_t size) {
    if (size > capacity_) {
      std::free(data_);
      data_ = static_cast<T*>(std::aligned_alloc(64, (size * sizeof(T) + 127) / 64 * 64));
      if (data_ == nullptr) throw std::bad_alloc();
      capacity_ = size;
    }
    size_ = size;
  }
  // Grows by a sixteenth at least and keeps the contents: memory budgets count on little waste.
  void ResizeKeep(size_t size) {
    const size_t more = capacity_ + capacity_ / 16;
    if (size > capacity_) Reserve(size > more ? size : more);
    size_ = size;
  }
  // Room for `size` values; the contents and their number stay.
  void Reserve(size_t size) {
    if (size <= capacity_) return;
    AlignedBuffer bigger(size);
    if (size_ > 0) std::memcpy(bigger.data_, data_, size_ * sizeof(T));
    bigger.size_ = size_;
    Swap(bigger);
  }
  void Fill(T value) {
    for (size_t i = 0; i < size_; ++i) data_[i] = value;
  }
  T* data() { return data_; }
  const T* data() const { return data_; }
  size_t size() const { return size_; }
  size_t capacity_bytes() const { return capacity_ * sizeof(T); }
  T& operator[](size_t i) { return data_[i]; }
  const T& operator[](size_t i) const { return data_[i]; }

 private:
  void Swap(AlignedBuffer& other) {
    std::swap(data_, other.data_);
    std::swap(size_, other.size_);
    std::swap(capacity_, other.capacity_);
  }
  T* data_ = nullptr;
  size_t size_ = 0;
  size_t capacity_ = 0;
};

}  // namespace vericache
