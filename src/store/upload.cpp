#include "store/upload.h"

#include <fmt/format.h>

#include <algorithm>
#include <charconv>
#include <chrono>
#include <utility>

#include "base/cancel.h"
#include "base/printable.h"
#include "base/text.h"
#include "saturate/data/error.h"
#include "store/credentials.h"
#include "store/md5.h"
#include "store/range_reply.h"
#include "store/sha256.h"
#include "store/xml.h"

namespace saturate {
namespace {

constexpr int kUploads = 4;             // parts at a time
constexpr size_t kMostParts = 10'000;   // S3's limit
constexpr size_t kMostReply = 1 << 20;  // bytes
constexpr size_t kMostList = 8 << 20;   // bytes of a list of 1,000 uploads or parts
constexpr int kCompleteSeconds = 600;   // at least; the store may join many parts meanwhile
constexpr int kMostCompletes = 5;
constexpr double kLeastRate = 16 << 10;  // bytes/s of a part, which shares the link with others
constexpr double kAbortSeconds = 15, kStoppedAbortSeconds = 2;

// All parts but the last are equal, as some stores want. The object may become twice as large as
// expected.
uint64_t part_bytes_for(uint64_t expected_bytes, uint64_t least) {
  constexpr uint64_t kUnit = 1 << 20, kExpectedParts = kMostParts / 2;
  const uint64_t needed = expected_bytes / kExpectedParts;
  return needed <= least ? least : (needed + kUnit) / kUnit * kUnit;
}

std::shared_ptr<const std::vector<std::byte>> bytes_of_text(const std::string& text) {
  const auto bytes = std::as_bytes(std::span(text));
  return std::make_shared<std::vector<std::byte>>(bytes.begin(), bytes.end());
}

void set_body(HttpRequest& request, std::shared_ptr<const std::vector<std::byte>> body) {
  request.body_hash = sha256_hex(*body);
  request.body = std::move(body);
  request.headers.push_back("Content-Type: application/octet-stream");
}

void print_info(const std::string& name, const std::string& text) {
  print_log(LogLevel::kInfo, "saturate", printable(name + ": " + text));
}

std::string mb_text(uint64_t bytes) {
  return fmt::format("{:.1f} MB", double(bytes) * 1e-6);
}

}  // namespace

Upload::Upload(std::shared_ptr<ObjectStore> store, const std::string& url, uint64_t expected_bytes)
    : store_(std::move(store)),
      part_bytes_(part_bytes_for(expected_bytes, store_->tuning().part_bytes)),
      name_(store_name(url)),
      location_(locate_object(store_->env(), url)),
      place_(locate_bucket(store_->env(), url)) {
  if (place_.key.ends_with('/'))
    fail(ErrorKind::kUsage, "names a folder, not an object", name_, "Write s3://BUCKET/KEY");
  if (size_there())
    fail(ErrorKind::kUsage, "object exists already", name_, "Choose a new one with --out");
  find_unfinished();
}

Upload::~Upload() {
  ending_ = true;
  threads_.reset();
  if (is_closed_ || id_.empty()) return;
  if (has_parts())
    tell_what_stays();
  else
    abort(id_);
}

bool Upload::has_parts() {
  const MutexLock lock(mutex_);
  return id_ == left_.id ||
         std::ranges::any_of(etags_, [](const std::string& etag) { return !etag.empty(); });
}

void Upload::tell_what_stays() const {
  const size_t bucket = name_.find("://") + 3;
  print_info(name_,
             "the parts that were sent stay in the store, and the same command continues with "
             "them. To remove them: aws " +
                 (location_.is_google ? "--endpoint-url " + find_google_endpoint() + " " : "") +
                 "s3api abort-multipart-upload --bucket " +
                 name_.substr(bucket, name_.find('/', bucket) - bucket) + " --key " +
                 shell_word(place_.key) + " --upload-id " + shell_word(id_));
}

HttpCall Upload::call_of(const std::string& method, const std::string& query) const {
  HttpCall call;
  call.name = name_;
  call.is_signed = true;
  call.for_google = location_.is_google;
  call.request.method = method;
  call.request.url = location_.url + query;
  call.request.region = location_.region;
  call.request.authorities = location_.authorities;
  call.request.most = kMostReply;
  return call;
}

// The size of the object under this name, if there is one.
std::optional<uint64_t> Upload::size_there() {
  HttpCall call = call_of("GET", "");
  call.request.headers = {"Range: bytes=0-0"};
  const HttpReply reply = store_->calls().call(call);
  if (reply.status == 404) return std::nullopt;
  if (reply.status == 416) return 0;
  if (reply.status == 403 && !reply.signed_by.empty() && error_code_of(reply) == "AccessDenied")
    fail(ErrorKind::kData, "cannot tell whether the object exists: the server answered 403", name_,
         "Grant these keys s3:GetObject and s3:ListBucket: without the latter, S3 denies access to "
         "an object that does not exist");
  require_good(call, reply, "read the object");
  const std::string range = reply.header("content-range");
  uint64_t size = 0;
  const size_t slash = range.find('/');
  if (slash != std::string::npos)
    std::from_chars(range.data() + slash + 1, range.data() + range.size(), size);
  return size;
}

// Without permission to list uploads none is found.
std::vector<std::string> Upload::unfinished_ids() {
  HttpCall call = call_of("GET", "");
  call.request.url = place_.bucket.url + "?prefix=" + encode_query(place_.key) + "&uploads=";
  call.request.most = kMostList;
  const HttpReply reply = store_->calls().call(call);
  std::vector<std::string> ids;
  if (reply.status != 200) return ids;
  std::string key, id;
  read_xml(text_of(reply), name_, [&](std::string_view path, std::string& value) {
    if (path == "ListMultipartUploadsResult/Upload/Key") key = value;
    if (path == "ListMultipartUploadsResult/Upload/UploadId") id = value;
    if (path != "ListMultipartUploadsResult/Upload") return;
    if (key == place_.key && !id.empty()) ids.push_back(id);
    key.clear();
    id.clear();
  });
  return ids;
}

// Without permission to list parts there are none.
Upload::Unfinished Upload::parts_of(const std::string& id) {
  Unfinished found{id, {}, 0};
  for (uint64_t before = 0, next = 0;; before = next) {  // numbers of parts
    const std::string from =
        before > 0 ? "part-number-marker=" + std::to_string(before) + "&" : std::string();
    HttpCall call = call_of("GET", "?" + from + "uploadId=" + encode_query(id));
    call.request.most = kMostList;
    const HttpReply reply = store_->calls().call(call);
    if (reply.status != 200) return found;
    uint64_t number = 0;
    Part part;
    bool has_more = false;
    read_xml(text_of(reply), name_, [&](std::string_view path, std::string& value) {
      path = path.substr(path.find('/') + 1);  // servers name the root differently
      if (path == "IsTruncated") has_more = value == "true";
      if (path == "Part/PartNumber") number = parsed_number<uint64_t>(value).value_or(0);
      if (path == "Part/Size") part.size = parsed_number<uint64_t>(value).value_or(0);
      if (path == "Part/ETag") part.etag = value;
      if (path != "Part") return;
      next = std::max(next, number);
      if (part.size == part_bytes_) found.bytes += part.size;
      if (number <= kMostParts) found.parts[number] = std::exchange(part, {});
    });
    if (!has_more || next <= before || next > kMostParts) return found;
  }
}

void Upload::find_unfinished() {
  for (const std::string& id : unfinished_ids()) {
    Unfinished other = parts_of(id);
    if (other.bytes > left_.bytes) std::swap(other, left_);
    if (!other.id.empty()) abort(other.id);
  }
}

void Upload::append(std::span<const std::byte> bytes) {
  const auto most = size_t(part_bytes_);
  while (!bytes.empty()) {
    if (part_.empty()) part_.reserve(most);
    const size_t count = std::min(most - part_.size(), bytes.size());
    part_.insert(part_.end(), bytes.begin(), bytes.begin() + ptrdiff_t(count));
    bytes = bytes.subspan(count);
    size_ += count;
    if (part_.size() == most) send_part();
  }
}

void Upload::begin() {
  id_ = left_.id;
  if (!id_.empty()) {
    print_info(name_, "continuing an upload of which the store has " + mb_text(left_.bytes));
  } else {
    HttpCall call = call_of("POST", "?uploads=");
    set_body(call.request, bytes_of_text(""));
    const HttpReply reply = store_->calls().call(call);
    require_good(call, reply, "write the object");
    id_ = xml_value(text_of(reply), "UploadId", name_);
  }
  if (id_.empty())
    fail(ErrorKind::kRun, "the store does not start a multipart upload", name_,
         "Check the endpoint: it must be that of an S3 service");
  threads_.emplace(kUploads, "upload");
}

void Upload::send_part() {
  if (id_.empty()) begin();
  wait_for_parts(kUploads - 1);
  size_t number = 0;
  {
    const MutexLock lock(mutex_);
    number = etags_.size() + 1;
    if (number <= kMostParts) etags_.emplace_back();
    ++sending_;
  }
  if (number > kMostParts)
    fail(ErrorKind::kRun,
         "the object has more than 10,000 parts of " + std::to_string(part_bytes_ >> 20) + " MiB",
         name_, "Write several, as of split:held,1/2,SOURCE and split:train,1/2,SOURCE");
  const Bytes bytes = std::make_shared<std::vector<std::byte>>(std::exchange(part_, {}));
  threads_->submit([this, number, bytes, cancel = cancel_test()] {
    const CancelScope scope([&] { return ending_.load() || (cancel && cancel()); });
    std::exception_ptr failure;
    try {
      put_part(number, bytes);
    } catch (...) {
      failure = std::current_exception();
    }
    const MutexLock lock(mutex_);
    --sending_;
    if (failure && !failure_) failure_ = failure;
    progress_.notify_all();
  });
}

// Whether an earlier process sent exactly this part. The ETag of an encrypted part (SSE-KMS) is not
// an MD5, and never equals one.
bool Upload::is_there(size_t number, std::span<const std::byte> bytes) const {
  const auto found = left_.parts.find(number);
  return found != left_.parts.end() && found->second.size == bytes.size() &&
         trimmed(found->second.etag, "\"") == md5_hex(bytes);
}

HttpReply Upload::put(const std::string& query, const Bytes& bytes) {
  HttpCall call = call_of("PUT", query);
  set_body(call.request, bytes);
  // RFC 1864; buckets with Object Lock require it.
  call.request.headers.push_back("Content-MD5: " + base64(md5(*bytes)));
  call.retry_s = store_->options().timeout_s;
  call.request.timeout_s = std::max(call.retry_s, double(bytes->size()) / kLeastRate);
  HttpReply reply = store_->calls().call(call);
  require_good(call, reply, "write the object");
  return reply;
}

void Upload::put_part(size_t number, const Bytes& bytes) {
  if (is_there(number, *bytes)) {
    kept_ += bytes->size();
    const MutexLock lock(mutex_);
    etags_[number - 1] = left_.parts.at(number).etag;
    return;
  }
  const std::string etag =
      put("?partNumber=" + std::to_string(number) + "&uploadId=" + encode_query(id_), bytes)
          .header("etag");
  if (etag.empty())
    fail(ErrorKind::kRun, "the store acknowledges a part without an ETag", name_,
         "Check the endpoint: it must be that of an S3 service");
  const MutexLock lock(mutex_);
  etags_[number - 1] = etag;
}

// Until at most that many are being sent.
void Upload::wait_for_parts(size_t most) {
  MutexLock lock(mutex_);
  while (!failure_ && sending_ > most) {
    if (is_cancelled()) fail_cancelled(name_);
    progress_.wait_until(lock, std::chrono::steady_clock::now() + kCancelLook);
  }
  if (failure_) std::rethrow_exception(failure_);
}

void Upload::close() {
  if (id_.empty()) {
    put("", std::make_shared<std::vector<std::byte>>(std::exchange(part_, {})));
  } else {
    if (!part_.empty()) send_part();
    wait_for_parts(0);
    complete();
  }
  is_closed_ = true;
  if (kept_ > 0) print_info(name_, "kept " + mb_text(kept_) + " of an earlier upload");
  if (id_.empty() && left_.id.empty()) return;
  try {  // one of which the reply to its begin was lost, and left_ if the object has no parts
    for (const std::string& id : unfinished_ids()) abort(id);
  } catch (const Error&) {
    // The object is there.
  }
}

void Upload::complete() {
  HttpCall call = call_of("POST", "?uploadId=" + encode_query(id_));
  std::string body = "<CompleteMultipartUpload>";
  {
    const MutexLock lock(mutex_);
    for (size_t i = 0; i < etags_.size(); ++i)
      body += "<Part><PartNumber>" + std::to_string(i + 1) + "</PartNumber><ETag>" +
              xml_escaped(etags_[i]) + "</ETag></Part>";
  }
  set_body(call.request, bytes_of_text(body + "</CompleteMultipartUpload>"));
  call.request.stall_s = kCompleteSeconds;
  call.request.timeout_s = std::max(store_->options().timeout_s, double(kCompleteSeconds));
  std::string problem;
  for (int i = 0; i < kMostCompletes; ++i) {
    const HttpReply reply = store_->calls().call(call);
    // An attempt whose reply was lost has completed it.
    if (reply.status == 404 && size_there() == size_) return;
    require_good(call, reply, "write the object");
    // A store that began its reply before it was done reports a failure in it.
    const std::string text = text_of(reply);
    bool is_done = false;
    read_xml(text, name_, [&](std::string_view path, std::string&) {
      if (path == "CompleteMultipartUploadResult") is_done = true;
    });
    if (is_done) return;
    problem = error_code_of(reply);
  }
  fail(ErrorKind::kRun, "the store does not complete the upload: " + problem, name_,
       "Run it again");
}

void Upload::abort(const std::string& id) {
  HttpCall call = call_of("DELETE", "?uploadId=" + encode_query(id));
  call.request.timeout_s = is_cancelled() ? kStoppedAbortSeconds : kAbortSeconds;
  const CancelScope scope({});  // a cancelled thread too leaves no parts
  try {
    const HttpReply reply = store_->calls().call(call);
    if (reply.status != 404) require_good(call, reply, "remove the parts of an upload");
  } catch (const Error& error) {
    print_warning(
        std::string(error.what()) + ". Parts of it may remain" +
        (is_closed_ ? "" : ": running the command again continues with them, or removes them"));
  }
}

}  // namespace saturate
