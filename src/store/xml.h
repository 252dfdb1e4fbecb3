// The XML of stores' replies: elements, text and character references. Attributes are ignored;
// comments, CDATA and document types are refused, as no store sends them.
#pragma once

#include <functional>
#include <string>
#include <string_view>

namespace saturate {

// Calls `text(path, value)` at the end of each element, in order: `path` are the names from the
// root on, as "ListBucketResult/Contents/Key"; `value` is the text in it, outside its children.
// Fails with kRun naming `where` if the document is malformed, truncated, or more than 8 deep. The
// time is linear, and the memory that of `xml`.
void read_xml(std::string_view xml, const std::string& where,
              const std::function<void(std::string_view path, std::string& value)>& text);

// The text of the element at `path` below the root, which servers name differently; "" if there is
// none. Fails as read_xml().
std::string xml_value(std::string_view xml, const std::string& path, const std::string& where);

// `text` as the contents of an element.
std::string xml_escaped(std::string_view text);

}  // namespace saturate
