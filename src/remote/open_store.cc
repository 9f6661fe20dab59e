#include "remote/open_store.h"

#include <utility>
#include <vector>

#include "base/status_macros.h"
#include "base/text.h"
#include "remote/guarded_store.h"
#include "remote/redis_store.h"
#include "remote/s3_store.h"
#include "remote/squeezed_store.h"
#include "remote/store_url.h"
#include "remote/tiered_store.h"
#include "storage/file_blob_store.h"

namespace vericache {
namespace {

absl::StatusOr<SqueezedStore::OnPut> SqueezeOf(const StoreUrl& url) {
  const std::string text = url.Param("squeeze");
  if (text.empty()) return SqueezedStore::OnPut::kAsItIs;
  if (text == "zstd") return SqueezedStore::OnPut::kSqueeze;
  return absl::InvalidArgumentError(
      StrCat(url.Redacted(), ": squeeze= knows zstd, or is left out"));
}

absl::StatusOr<std::unique_ptr<BlobStore>> OpenRemote(const StoreUrl& url,
                                                      const StoreOptions& options) {
  const auto notice = [&](const std::string& text) {
    if (options.on_notice) options.on_notice(text);
  };
  if (url.Param("tls_verify", "1") == "0")
    notice(StrCat(url.Redacted(), ": tls_verify=0, whoever answers is believed"));
  if (url.scheme == "s3") {
    VC_ASSIGN_OR_RETURN(S3Options s3, S3OptionsOf(url, options.environment));
    s3.read_only = options.read_only;
    return std::unique_ptr<BlobStore>(std::make_unique<S3Store>(std::move(s3)));
  }
  VC_ASSIGN_OR_RETURN(RedisOptions redis, RedisOptionsOf(url));
  redis.read_only = options.read_only;
  return std::unique_ptr<BlobStore>(std::make_unique<RedisStore>(redis));
}

}  // namespace

absl::StatusOr<std::unique_ptr<BlobStore>> OpenStore(std::string_view text,
                                                     const StoreOptions& options) {
  VC_ASSIGN_OR_RETURN(const std::vector<StoreUrl> urls, ParseStoreList(text));
  std::vector<std::unique_ptr<BlobStore>> tiers;
  for (const StoreUrl& url : urls) {
    if (url.scheme == "file") {
      FileBlobStoreOptions files;
      files.read_only = options.read_only;
      files.max_bytes = options.max_folder_bytes;
      VC_ASSIGN_OR_RETURN(std::unique_ptr<FileBlobStore> folder,
                          FileBlobStore::Open(url.path, files));
      tiers.push_back(std::move(folder));
      continue;
    }
    VC_ASSIGN_OR_RETURN(const SqueezedStore::OnPut on_put, SqueezeOf(url));
    VC_ASSIGN_OR_RETURN(std::unique_ptr<BlobStore> remote, OpenRemote(url, options));
    remote = std::make_unique<SqueezedStore>(std::move(remote), on_put);
    tiers.push_back(std::make_unique<GuardedStore>(std::move(remote), options.on_notice));
  }
  if (tiers.size() == 1) return std::move(tiers[0]);
  const auto write_back =
      options.read_only ? TieredStore::WriteBack::kOff : TieredStore::WriteBack::kOn;
  return std::unique_ptr<BlobStore>(std::make_unique<TieredStore>(std::move(tiers), write_back));
}

absl::Status CheckStores(std::string_view text) {
  VC_ASSIGN_OR_RETURN(const std::vector<StoreUrl> urls, ParseStoreList(text));
  for (const StoreUrl& url : urls) {
    VC_RETURN_IF_ERROR(SqueezeOf(url).status());
    if (url.scheme == "s3") VC_RETURN_IF_ERROR(S3OptionsOf(url, nullptr).status());
    if (url.scheme.starts_with("redis")) VC_RETURN_IF_ERROR(RedisOptionsOf(url).status());
  }
  return absl::OkStatus();
}

std::string FolderIn(std::string_view text) {
  const absl::StatusOr<std::vector<StoreUrl>> urls = ParseStoreList(text);
  if (!urls.ok()) return "";
  for (const StoreUrl& url : *urls)
    if (url.scheme == "file") return url.path;
  return "";
}

}  // namespace vericache
