#include "data/npy_format.h"

#include <algorithm>
#include <charconv>
#include <optional>
#include <utility>

#include "data/bytes.h"
#include "saturate/data/error.h"

namespace saturate {
namespace {

constexpr std::string_view kMagic = "\x93NUMPY";
constexpr size_t kMaxNpyDimensions = 32;  // numpy's, before version 2

[[noreturn]] void refuse_npy(const std::string& what, const std::string& where,
                             const char* remedy = "Write it again with numpy.save") {
  fail(ErrorKind::kData, what, where, remedy);
}

// The header is the text of a Python dictionary of a text, a Boolean and a tuple of numbers.
class HeaderText {
 public:
  HeaderText(std::string_view text, const std::string& where) : left_(text), where_(where) {}

  // Whether the next character other than a space is `mark`, which is then skipped.
  bool skip(char mark) {
    skip_spaces();
    if (left_.empty() || left_.front() != mark) return false;
    left_.remove_prefix(1);
    return true;
  }
  void expect(char mark) {
    if (!skip(mark)) malformed();
  }
  std::string_view quoted() {
    const char quote = skip('\'') ? '\'' : '"';
    if (quote == '"') expect('"');
    const size_t end = left_.find(quote);
    if (end == std::string_view::npos) malformed();
    const std::string_view text = left_.substr(0, end);
    left_.remove_prefix(end + 1);
    return text;
  }
  bool boolean() {
    skip_spaces();
    const bool value = left_.starts_with("True");
    if (!value && !left_.starts_with("False")) malformed();
    left_.remove_prefix(value ? 4 : 5);
    return value;
  }
  std::vector<int64_t> tuple() {
    std::vector<int64_t> numbers;
    expect('(');
    while (!skip(')')) {
      skip_spaces();
      int64_t number = 0;
      const auto [end, error] = std::from_chars(left_.data(), left_.data() + left_.size(), number);
      if (error == std::errc::result_out_of_range)
        refuse_npy("the array has more values than can be counted", where_);
      if (error != std::errc() || numbers.size() == kMaxNpyDimensions) malformed();
      left_.remove_prefix(size_t(end - left_.data()));
      skip('L');  // a long number of Python 2
      numbers.push_back(number);
      if (!skip(',')) {
        expect(')');
        return numbers;
      }
    }
    return numbers;
  }
  // A list, which describes the fields of a record.
  bool is_list() {
    skip_spaces();
    return left_.starts_with('[');
  }
  void expect_end() {
    skip_spaces();
    if (!left_.empty()) malformed();
  }
  [[noreturn]] void malformed() const {
    refuse_npy("the header of the array is malformed", where_);
  }

 private:
  void skip_spaces() {
    left_.remove_prefix(std::min(left_.find_first_not_of(" \n"), left_.size()));
  }
  std::string_view left_;
  const std::string& where_;
};

struct NamedType {
  std::string_view code;  // without the byte order
  ElementType type;
};
constexpr NamedType kTypes[] = {
    {"b1", ElementType::kBool},    {"u1", ElementType::kUint8},   {"i1", ElementType::kInt8},
    {"u2", ElementType::kUint16},  {"i2", ElementType::kInt16},   {"u4", ElementType::kUint32},
    {"i4", ElementType::kInt32},   {"u8", ElementType::kUint64},  {"i8", ElementType::kInt64},
    {"f2", ElementType::kFloat16}, {"f4", ElementType::kFloat32}, {"f8", ElementType::kFloat64}};

void set_type(std::string_view described, ArrayLayout& layout, const std::string& where) {
  constexpr const char* kConvert = "Convert it to numbers, as with array.astype(\"float32\")";
  if (described.find('O') != std::string_view::npos)
    refuse_npy("the array holds Python objects (a pickle), which can run code and are never read",
               where, kConvert);
  const char order = described.empty() ? ' ' : described.front();
  if (order == '<' || order == '>' || order == '|' || order == '=')
    for (const NamedType& known : kTypes)
      if (described.substr(1) == known.code) {
        layout.type = known.type;
        layout.is_big_endian = order == '>' && bytes_of(known.type) > 1;
        return;
      }
  refuse_npy("the array is of type \"" + std::string(described.substr(0, 40)) +
                 "\", which is not a number of numpy and torch",
             where, kConvert);
}

ArrayLayout parse_dictionary(std::string_view text, const std::string& where) {
  ArrayLayout layout;
  bool has_type = false, has_order = false, has_shape = false;
  HeaderText header(text, where);
  header.expect('{');
  while (!header.skip('}')) {
    const std::string_view key = header.quoted();
    header.expect(':');
    if (key == "descr" && !std::exchange(has_type, true)) {
      if (header.is_list())
        refuse_npy("the array holds records of several fields", where,
                   "Save each field as a separate array, with numpy.savez");
      set_type(header.quoted(), layout, where);
    } else if (key == "fortran_order" && !std::exchange(has_order, true)) {
      layout.is_fortran = header.boolean();
    } else if (key == "shape" && !std::exchange(has_shape, true)) {
      layout.shape = header.tuple();
    } else {
      header.malformed();
    }
    if (!header.skip(',')) {
      header.expect('}');
      break;
    }
  }
  header.expect_end();
  if (!has_type || !has_order || !has_shape) header.malformed();
  return layout;
}

}  // namespace

NpyHeader parse_npy_header(std::span<const std::byte> begin, uint64_t size,
                           const std::string& where) {
  if (!as_text(begin).starts_with(kMagic)) refuse_npy("it is not an array of numpy", where);
  ByteReader reader(begin);
  reader.skip(kMagic.size());
  const unsigned major = reader.number<uint8_t>();
  reader.skip(1);
  if (reader.ok() && (major < 1 || major > 3))
    refuse_npy("the array is in version " + std::to_string(major) + " of numpy's format", where);
  const size_t length = major == 1 ? reader.number<uint16_t>() : reader.number<uint32_t>();
  if (reader.ok() && length > kNpyHeaderBytes - 12)
    refuse_npy("the header of the array is too long", where);
  const std::string_view text = reader.text(length);
  if (!reader.ok()) refuse_npy("the array is truncated in its header", where);
  NpyHeader header;
  header.layout = parse_dictionary(text, where);
  header.values_at = begin.size() - reader.left();
  measure(header.layout, where);
  const uint64_t follow = size - header.values_at;
  if (follow != header.layout.bytes)
    refuse_npy("the array has " + std::to_string(header.layout.bytes) + " bytes of values, and " +
                   std::to_string(follow) + " follow its header",
               where);
  return header;
}

}  // namespace saturate
