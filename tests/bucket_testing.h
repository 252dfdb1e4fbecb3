// A bucket of an S3 service for tests: lists and stores objects, also in parts, on a StoreServer.
#pragma once

#include <algorithm>
#include <map>
#include <mutex>
#include <set>
#include <string>
#include <utility>
#include <vector>

#include "store/md5.h"
#include "store/store_url.h"
#include "store/xml.h"
#include "tests/store_testing.h"

namespace saturate::testing {

// The value of a parameter in a request's query, decoded; "-" if it has none.
inline std::string parameter(const HttpAsk& ask, const std::string& name) {
  const std::string line = ask.head.substr(0, ask.head.find('\r'));
  const std::string target = line.substr(0, line.rfind(' '));
  for (size_t at = target.find('?'); at != std::string::npos; at = target.find('&', at + 1)) {
    const size_t end = std::min(target.find('&', at + 1), target.size());
    const std::string text = target.substr(at + 1, end - at - 1);
    if (text.substr(0, text.find('=')) != name) continue;
    std::string value = text.substr(std::min(text.find('=') + 1, text.size())), out;
    for (size_t i = 0; i < value.size(); ++i)
      if (value[i] == '%') {
        out += char(std::stoi(value.substr(i + 1, 2), nullptr, 16));
        i += 2;
      } else {
        out += value[i];
      }
    return out;
  }
  return "-";
}

inline std::string method_of(const HttpAsk& ask) {
  return ask.head.substr(0, ask.head.find(' '));
}

class FakeBucket {
 public:
  FakeBucket() { tamper({}); }

  // Changes answers to requests for http://SERVER/bucket/.
  void tamper(StoreServer::Tamper then) {
    server.tamper([this, then = std::move(then)](const HttpAsk& ask, HttpAnswer& answer) {
      respond(ask, answer);
      if (then) then(ask, answer);
    });
  }
  void put(const std::string& key, const std::string& text) {
    const std::lock_guard lock(mutex_);
    objects_[key] = text;
  }
  std::map<std::string, std::string> objects() const {
    const std::lock_guard lock(mutex_);
    return objects_;
  }
  void clear() {
    const std::lock_guard lock(mutex_);
    objects_.clear();
  }
  // As a process that is killed later.
  void begin_upload(const std::string& key, const std::map<int, std::string>& parts = {}) {
    const std::lock_guard lock(mutex_);
    uploads_["upload " + std::to_string(++count_)] = {key, parts};
  }
  size_t uploads() const {
    const std::lock_guard lock(mutex_);
    return uploads_.size();
  }
  size_t page = 1'000;  // keys or parts of a reply

 private:
  struct Unfinished {
    std::string key;
    std::map<int, std::string> parts;
  };

  static std::string etag_of(const std::string& text) {
    return "\"" + md5_hex(std::as_bytes(std::span(text))) + "\"";
  }

  void respond(const HttpAsk& ask, HttpAnswer& answer) {
    const std::lock_guard lock(mutex_);
    const std::string path = "/bucket/";
    if (!ask.path.starts_with(path)) return;
    std::string key;
    for (size_t i = path.size(); i < ask.path.size(); ++i)
      if (ask.path[i] == '%') {
        key += char(std::stoi(ask.path.substr(i + 1, 2), nullptr, 16));
        i += 2;
      } else {
        key += ask.path[i];
      }
    const std::string method = method_of(ask), upload = parameter(ask, "uploadId");
    answer = {200, {}, ""};
    if (method == "GET" && parameter(ask, "list-type") == "2") {
      answer.body = list(ask);
    } else if (method == "GET" && parameter(ask, "uploads") != "-") {
      answer.body = list_uploads(parameter(ask, "prefix"));
    } else if (method == "GET" && uploads_.contains(upload)) {
      answer.body = list_parts(uploads_[upload], parameter(ask, "part-number-marker"));
    } else if (method == "GET") {
      get(key, ask, answer);
    } else if (method == "PUT" && upload == "-") {
      objects_[key] = ask.body;
    } else if (method == "POST" && parameter(ask, "uploads") != "-") {
      const std::string id = "upload " + std::to_string(++count_);
      uploads_[id].key = key;
      answer.body = "<InitiateMultipartUploadResult><UploadId>" + id +
                    "</UploadId></InitiateMultipartUploadResult>";
    } else if (!uploads_.contains(upload)) {
      answer = {404, {}, "<Error><Code>NoSuchUpload</Code></Error>"};
    } else if (method == "PUT") {
      uploads_[upload].parts[std::stoi(parameter(ask, "partNumber"))] = ask.body;
      answer.headers["ETag"] = etag_of(ask.body);
    } else if (method == "DELETE") {
      uploads_.erase(upload);
      answer.status = 204;
    } else {
      complete(upload, ask.body, answer);
    }
  }

  void get(const std::string& key, const HttpAsk& ask, HttpAnswer& answer) {
    const auto found = objects_.find(key);
    if (found == objects_.end()) {
      answer = {404, {}, "<Error><Code>NoSuchKey</Code></Error>"};
      return;
    }
    const std::string& text = found->second;
    if (ask.first >= text.size()) {
      answer = {416, {{"Content-Range", "bytes */" + std::to_string(text.size())}}, ""};
      return;
    }
    const uint64_t last = std::min<uint64_t>(ask.last, text.size() - 1);
    answer = {206,
              {{"ETag", etag_of(text)},
               {"Content-Range", StoreServer::content_range(ask.first, last, text.size())}},
              text.substr(ask.first, last + 1 - ask.first)};
  }

  std::string list(const HttpAsk& ask) const {
    const std::string prefix = parameter(ask, "prefix"),
                      token = parameter(ask, "continuation-token");
    const bool by_folder = parameter(ask, "delimiter") == "/";
    std::string body =
        "<?xml version=\"1.0\" encoding=\"UTF-8\"?>\n<ListBucketResult "
        "xmlns=\"http://s3.amazonaws.com/doc/2006-03-01/\"><EncodingType>url"
        "</EncodingType>";
    std::string last, folder;
    size_t count = 0;
    bool is_truncated = false;
    for (const auto& [key, text] : objects_) {
      if (!key.starts_with(prefix) || (token != "-" && key <= token)) continue;
      const size_t slash = by_folder ? key.find('/', prefix.size()) : std::string::npos;
      const std::string in = slash == std::string::npos ? "" : key.substr(0, slash + 1);
      const bool is_same = !in.empty() && in == folder;
      if (!is_same && count == page) {
        is_truncated = true;
        break;
      }
      last = key;
      if (is_same) continue;
      ++count;
      folder = in;
      if (!in.empty())
        body += "<CommonPrefixes><Prefix>" + encode_query(in) + "</Prefix></CommonPrefixes>";
      else
        body += "<Contents><Key>" + encode_query(key) + "</Key><ETag>" +
                xml_escaped(etag_of(text)) + "</ETag><Size>" + std::to_string(text.size()) +
                "</Size></Contents>";
    }
    body += is_truncated ? "<IsTruncated>true</IsTruncated><NextContinuationToken>" +
                               xml_escaped(last) + "</NextContinuationToken>"
                         : "<IsTruncated>false</IsTruncated>";
    return body + "</ListBucketResult>";
  }

  std::string list_uploads(const std::string& prefix) const {
    std::string body = "<ListMultipartUploadsResult>";
    for (const auto& [id, upload] : uploads_)
      if (upload.key.starts_with(prefix))
        body += "<Upload><Key>" + xml_escaped(upload.key) + "</Key><UploadId>" + id +
                "</UploadId></Upload>";
    return body + "</ListMultipartUploadsResult>";
  }

  std::string list_parts(const Unfinished& upload, const std::string& marker) const {
    std::string body;
    size_t count = 0;
    auto part = upload.parts.upper_bound(marker == "-" ? 0 : std::stoi(marker));
    for (; part != upload.parts.end() && count < page; ++part, ++count)
      body += "<Part><PartNumber>" + std::to_string(part->first) + "</PartNumber><ETag>" +
              xml_escaped(etag_of(part->second)) + "</ETag><Size>" +
              std::to_string(part->second.size()) + "</Size></Part>";
    return "<ListPartsResult><IsTruncated>" +
           std::string(part == upload.parts.end() ? "false" : "true") + "</IsTruncated>" + body +
           "</ListPartsResult>";
  }

  void complete(const std::string& id, const std::string& body, HttpAnswer& answer) {
    const Unfinished& upload = uploads_[id];
    std::string text, number;
    bool is_good = true;
    read_xml(body, "test", [&](std::string_view path, std::string& value) {
      if (path == "CompleteMultipartUpload/Part/PartNumber") number = value;
      if (path != "CompleteMultipartUpload/Part/ETag") return;
      const auto part = upload.parts.find(std::stoi(number));
      is_good = is_good && part != upload.parts.end() && value == etag_of(part->second);
      if (is_good) text += part->second;
    });
    if (!is_good) {
      answer = {400, {}, "<Error><Code>InvalidPart</Code></Error>"};
      return;
    }
    objects_[upload.key] = text;
    uploads_.erase(id);
    answer.body = "<CompleteMultipartUploadResult><ETag>x</ETag></CompleteMultipartUploadResult>";
  }

  mutable std::mutex mutex_;
  std::map<std::string, std::string> objects_;
  std::map<std::string, Unfinished> uploads_;  // by number
  int count_ = 0;

 public:
  StoreServer server;  // last: its threads use all of the above
};

// Only these settings of AWS, and the endpoint of a server.
class BucketVariables {
 public:
  BucketVariables(const std::string& home, const std::string& endpoint)
      : variables_{{"HOME", home.c_str()},
                   {"AWS_ENDPOINT_URL", endpoint.c_str()},
                   {"AWS_ACCESS_KEY_ID", "KEYKEY"},
                   {"AWS_SECRET_ACCESS_KEY", "SECRETSECRET"},
                   {"AWS_SESSION_TOKEN", nullptr},
                   {"AWS_PROFILE", nullptr},
                   {"AWS_DEFAULT_PROFILE", nullptr},
                   {"GS_ACCESS_KEY_ID", nullptr},
                   {"GS_SECRET_ACCESS_KEY", nullptr},
                   {"GS_SESSION_TOKEN", nullptr},
                   {"AWS_REQUEST_PAYER", nullptr},
                   {"AWS_SHARED_CREDENTIALS_FILE", nullptr},
                   {"AWS_CONFIG_FILE", nullptr},
                   {"AWS_ENDPOINT_URL_S3", nullptr},
                   {"AWS_REGION", nullptr},
                   {"AWS_DEFAULT_REGION", nullptr},
                   {"AWS_S3_ADDRESSING_STYLE", nullptr},
                   {"AWS_WEB_IDENTITY_TOKEN_FILE", nullptr}} {}

 private:
  const ScopedVariable variables_[18];
};

}  // namespace saturate::testing
