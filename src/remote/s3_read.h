// One blob on its way from S3 into its buffer, range by range.
#pragma once

#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include "remote/s3_client.h"
#include "storage/blob_header.h"
#include "storage/blob_store.h"

namespace vericache {

class S3Reading {
 public:
  S3Reading(const S3Client* client, const BlobKey& key, std::string url)
      : client_(client), key_(key), url_(std::move(url)) {}
  S3Reading(const S3Reading&) = delete;
  S3Reading& operator=(const S3Reading&) = delete;

  // The requests to run next: the first range, then all others; none: it is finished.
  std::vector<HttpCall*> NextCalls();
  // Lets a broken request of these go on where it ended. False: no use.
  bool Resume(HttpCall* call);
  // The object was replaced while it was read: everything from the beginning, once.
  bool Restart();
  // ERRORS: kNotFound (missing, or damaged: *damaged), those of the client.
  absl::StatusOr<BlobBytes> Take(bool* damaged);

 private:
  struct Range {
    uint64_t begin = 0, end = 0;  // of the object; end is a wish until the total is known
    uint64_t done = 0;            // bytes that came
    HttpCall call;
  };
  void AddRange(uint64_t begin, uint64_t end);
  void Ask(Range* range);
  bool OnHead(Range* range, const HttpCall& call);
  bool OnBody(Range* range, const uint8_t* data, size_t size);
  Range* RangeOf(const HttpCall* call);
  bool Whole() const;

  const S3Client* client_;
  const BlobKey key_;
  const std::string url_;
  std::vector<std::unique_ptr<Range>> ranges_;
  BlobHeader header_{};
  BlobBytes payload_;
  uint64_t total_ = 0;  // bytes of the object; 0: not known
  std::string etag_;
  bool senseless_ = false;  // an answer that no S3 gives, or a length that no blob has
  bool replaced_ = false;
  bool restarted_ = false;
};

}  // namespace vericache
