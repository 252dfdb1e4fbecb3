// Whether a server's reply to a request for a range holds that range.
#pragma once

#include <cstdint>
#include <string>

#include "saturate/data/error.h"
#include "store/store_url.h"
#include "store/transfers.h"

namespace saturate {

enum class ReplyKind {
  kGood,
  kRetry,     // the fault may pass
  kLie,       // against the protocol; the last of several is believed
  kRedirect,  // to reply.redirect
  kExpired,   // the credentials have expired
  kFinal,
};

struct ReplyVerdict {
  ReplyKind kind = ReplyKind::kGood;
  std::string what;    // if not kGood
  std::string remedy;  // kFinal
  ErrorKind error = ErrorKind::kRun;
};

// The text between <Code> and </Code> in S3's XML, which has letters and dots, and digits in one
// known case; "" if there is none.
std::string error_code_of(const HttpReply& reply);
// "503 SlowDown", or "404" without a code.
std::string status_text(const HttpReply& reply);
// The region that a server names as the bucket's, if the request was for another one; else "".
std::string other_region(const HttpReply& reply);
// Whether a further attempt may succeed, as with a store that is too busy.
bool may_pass(int status, const std::string& code);
// Seconds that the server asks to wait, at most 60: "Retry-After: SECONDS". Its other form, a date,
// is ignored.
double retry_after(const HttpReply& reply);
// Whether the credentials have expired.
bool is_expired(const std::string& code);
// Whether access with these credentials is denied.
bool is_denied(int status, const std::string& code);
// Whether the store does not know the key or its token, which may have been deleted or expired.
bool is_unknown_key(const std::string& code);
// The remedy of a denied access to a bucket; `doing`: "read the object"; `signed_by`: see
// HttpReply.
std::string remedy_of_denial(const std::string& code, const std::string& doing,
                             const std::string& signed_by);

// Judges the reply to a GET of [offset, offset + length), which of an object that is not yet open
// may be shorter. A good first reply opens the object.
ReplyVerdict judge_reply(StoreObject& object, uint64_t offset, uint64_t length, HttpReply& reply);

}  // namespace saturate
