#include "store/bucket_list.h"

#include <algorithm>
#include <cmath>
#include <unordered_set>
#include <utility>

#include "base/printable.h"
#include "base/text.h"
#include "saturate/data/error.h"
#include "store/xml.h"

namespace saturate {
namespace {

constexpr size_t kMostPage = 8 << 20;       // bytes of a reply of 1,000 keys
constexpr uint64_t kMostKeys = 50'000'000;  // of a source
constexpr int kMostEmptyPages = 1'000;      // one after the other
constexpr size_t kMostKey = 1'024;          // bytes; S3's limit

[[noreturn]] void fail_list(const std::string& what, const std::string& where) {
  fail(ErrorKind::kRun, what, where, "Check the endpoint: it must be that of an S3 service");
}

// The text in a list with encoding-type=url. A plus sign is a space, as in Amazon's.
std::string url_decoded(std::string_view text, const std::string& where) {
  std::string out;
  for (size_t i = 0; i < text.size(); ++i) {
    if (text[i] != '%') {
      out += text[i] == '+' ? ' ' : text[i];
      continue;
    }
    const std::string_view digits = text.substr(i + 1, 2);
    const auto byte = parsed_number<uint8_t>(digits, 16);
    if (digits.size() < 2 || !byte) fail_list("the list holds a key with a bad escape", where);
    out += char(*byte);
    i += 2;
  }
  return out;
}

uint64_t size_of(const std::string& text, const std::string& where) {
  const auto size = parsed_number<uint64_t>(text);
  if (!size) fail_list("the list holds an object without a size", where);
  return *size;
}

// The fields of a reply while it is read; keys are decoded at the end, when the encoding is known.
struct PageReader {
  ListPage page;
  ListedObject object;
  std::string size;
  bool is_list = false, is_truncated = false, is_encoded = false;

  void take(std::string_view path, std::string& value, const std::string& where) {
    constexpr std::string_view kRoot = "ListBucketResult";
    if (path == kRoot) is_list = true;
    if (!path.starts_with("ListBucketResult/")) return;
    path.remove_prefix(kRoot.size() + 1);
    if (path == "IsTruncated") is_truncated = value == "true";
    if (path == "EncodingType") is_encoded = value == "url";
    if (path == "NextContinuationToken") page.next = value;
    if (path == "CommonPrefixes/Prefix") page.folders.push_back(value);
    if (path == "Contents/Key") object.key = value;
    if (path == "Contents/ETag") object.etag = value;
    if (path == "Contents/Size") size = value;
    if (path == "Contents") {
      object.size = size_of(std::exchange(size, ""), where);
      if (!object.etag.empty() && object.etag.front() != '"') object.etag = '"' + object.etag + '"';
      page.objects.push_back(std::exchange(object, {}));
    }
  }
};

}  // namespace

ListPage parse_list_page(std::string_view xml, const std::string& where) {
  PageReader reader;
  read_xml(xml, where,
           [&](std::string_view path, std::string& value) { reader.take(path, value, where); });
  if (!reader.is_list) fail_list("the reply is not a list of objects", where);
  ListPage& page = reader.page;
  if (!reader.is_truncated) page.next.clear();
  if (reader.is_truncated && page.next.empty())
    fail_list("the list continues, but does not say where", where);
  if (reader.is_encoded) {
    for (ListedObject& object : page.objects) object.key = url_decoded(object.key, where);
    for (std::string& folder : page.folders) folder = url_decoded(folder, where);
  }
  return std::move(page);
}

ListPage BucketList::page(const std::string& prefix, bool by_folder, const std::string& token) {
  HttpCall call;
  call.name = name_;
  call.is_signed = true;
  call.for_google = place_.bucket.is_google;
  call.request.most = kMostPage;
  call.request.stall_s = stall_s_;
  call.request.region = place_.bucket.region;
  call.request.authorities = place_.bucket.authorities;
  // In the order of the names, which the signature requires.
  call.request.url = place_.bucket.url + "?" +
                     (token.empty() ? "" : "continuation-token=" + encode_query(token) + "&") +
                     (by_folder ? "delimiter=%2F&" : "") +
                     "encoding-type=url&list-type=2&prefix=" + encode_query(prefix);
  const HttpReply reply = calls_.call(call);
  const int longer = int(std::ceil(2 * reply.first_byte_s));
  if (longer > stall_s_) stall_s_ = longer;
  require_good(call, reply, "list the bucket");
  return parse_list_page(text_of(reply), name_);
}

void BucketList::check(const std::string& prefix, const ListPage& page) {
  const auto is_foreign = [&](const std::string& key) {
    return !key.starts_with(prefix) || key.size() > kMostKey || key.find('\0') != std::string::npos;
  };
  for (const ListedObject& object : page.objects)
    if (is_foreign(object.key))
      fail_list("the server lists \"" + printable(object.key.substr(0, 100)) +
                    "\", which was not asked for",
                name_);
  for (const std::string& folder : page.folders)
    if (is_foreign(folder) || folder.size() <= prefix.size() ||
        folder.find('/', prefix.size()) != folder.size() - 1)
      fail_list("the server lists a folder \"" + printable(folder.substr(0, 100)) +
                    "\", which was not asked for",
                name_);
  keys_ += page.objects.size() + page.folders.size();
  if (keys_ > kMostKeys)
    fail(ErrorKind::kData, "the list has more than 50 million keys", name_,
         "Pack the images into shards, or name a part of them");
}

void BucketList::each_page(const std::string& prefix, bool by_folder,
                           const std::function<void(ListPage&&)>& take) {
  std::unordered_set<size_t> seen;  // hashes of tokens, and of the first keys of pages
  const std::hash<std::string> hash;
  std::string token;
  int empty = 0;
  do {
    ListPage found = page(prefix, by_folder, token);
    check(prefix, found);
    token = found.next;
    const bool is_empty = found.objects.empty() && found.folders.empty();
    empty = is_empty ? empty + 1 : 0;
    const bool is_known =
        (!token.empty() && !seen.insert(hash("t" + token)).second) ||
        (!found.objects.empty() && !seen.insert(hash("k" + found.objects[0].key)).second) ||
        (!found.folders.empty() && !seen.insert(hash("f" + found.folders[0])).second);
    if (empty > kMostEmptyPages || is_known)
      fail_list("the list has no end: its pages repeat", name_);
    take(std::move(found));
  } while (!token.empty());
}

}  // namespace saturate
