// The regions of buckets that Amazon's replies have named, for all requests of this process. Safe
// for concurrent use.
#pragma once

#include <string>

namespace saturate {

// Changes the URL of a bucket's object or list, and the region that signs it, to those of the
// region that a reply has named; they stay if none has, or if the host is not Amazon's.
void move_to_region(std::string& url, std::string& region);

// Notes the region that a reply to a request for this URL names, before move_to_region() changed
// it. False if it names none ("") or the host is not Amazon's, so that a further request would get
// the same reply.
bool note_region(const std::string& url, const std::string& region, const std::string& named);

// Changes of the region for one request.
constexpr int kMostMoves = 2;

}  // namespace saturate
