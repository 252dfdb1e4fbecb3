// npy:FILE.npy[,FILE.npy...] or npy:FOLDER, and npz:FILE.npz: arrays of numpy, [samples, ...] each:
// https://numpy.org/doc/stable/reference/generated/numpy.lib.format.html
#include <algorithm>
#include <charconv>
#include <utility>

#include "base/thread_pool.h"
#include "data/array_source.h"
#include "data/bytes.h"
#include "data/elements.h"
#include "data/path_list.h"
#include "data/zip_directory.h"
#include "saturate/data/error.h"
#include "store/store_url.h"

namespace saturate {
namespace {

// A prefix of this many bytes holds every header that is read (numpy's own limit is 10,000).
constexpr size_t kNpyHeaderBytes = 12 << 10;
constexpr std::string_view kNpyMagic = "\x93NUMPY";
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

void set_type(std::string_view described, ArrayLayout& layout, const std::string& where) {
  constexpr const char* kConvert = "Convert it to numbers, as with array.astype(\"float32\")";
  if (described.find('O') != std::string_view::npos)
    refuse_npy("the array holds Python objects (a pickle), which can run code and are never read",
               where, kConvert);
  const char order = described.empty() ? ' ' : described.front();
  if (order == '<' || order == '>' || order == '|' || order == '=')
    if (const ElementRow* known = find_element(&ElementRow::npy, described.substr(1))) {
      layout.type = known->type;
      layout.is_big_endian = order == '>' && known->bytes > 1;
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

struct NpyHeader {
  ArrayLayout layout;
  uint64_t values_at = 0;  // bytes from the start
};

// Parses the start of a .npy file of `size` bytes. Fails with kData naming `where`: not such a
// file, truncated, continuing after the array, or of a type that is not numbers (objects are
// pickles, which are never read).
NpyHeader parse_npy_header(std::span<const std::byte> begin, uint64_t size,
                           const std::string& where) {
  if (!as_text(begin).starts_with(kNpyMagic)) refuse_npy("it is not an array of numpy", where);
  ByteReader reader(begin);
  reader.skip(kNpyMagic.size());
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

constexpr std::string_view kEnding = ".npy";

// "a/x.npy" is the array x.
std::string without_ending(std::string_view path) {
  if (path.ends_with(kEnding)) path.remove_suffix(kEnding.size());
  return std::string(path);
}

StoredArray open_npy_array(Env& env, const std::string& url) {
  std::shared_ptr<const ReadableFile> file = env.open_readable(url);
  const std::string path = store_name(url);
  std::vector<std::byte> begin(std::min<uint64_t>(file->size(), kNpyHeaderBytes));
  file->read_at(0, begin);
  const NpyHeader header = parse_npy_header(begin, file->size(), path);
  return stored_in(std::move(file), header.values_at,
                   without_ending(std::string_view(path).substr(path.rfind('/') + 1)),
                   header.layout, path);
}

StoredArray open_member(const std::shared_ptr<const ReadableFile>& file, const ZipMember& member,
                        const std::string& path) {
  const std::string where = path + ":" + member.name, name = without_ending(member.name);
  // Larger ones are read sample by sample, and their checksum is not verified.
  constexpr uint64_t kMostInMemory = uint64_t{64} << 20;
  if (member.is_deflated || member.size <= kMostInMemory) {
    std::vector<std::byte> bytes = read_member(member, *file, path);
    const NpyHeader header = parse_npy_header(
        std::span(bytes).first(std::min(bytes.size(), kNpyHeaderBytes)), bytes.size(), where);
    bytes.erase(bytes.begin(), bytes.begin() + ptrdiff_t(header.values_at));
    return stored_in_memory(std::move(bytes), name, header.layout);
  }
  const uint64_t offset = offset_of(member, *file, path);
  std::vector<std::byte> begin(std::min<uint64_t>(member.size, kNpyHeaderBytes));
  file->read_at(offset, begin);
  const NpyHeader header = parse_npy_header(begin, member.size, where);
  return stored_in(file, offset + header.values_at, name, header.layout, where);
}

}  // namespace

std::unique_ptr<Dataset> open_npy(Env& env, const std::string& rest) {
  std::string list = rest;
  const ArrayChoice choice = take_array_choice(list);
  const std::vector<std::string> files = find_files(env, list, "npy");
  std::vector<StoredArray> arrays(files.size());
  parallel_for(files.size(), opening_threads(files),
               [&](size_t i) { arrays[i] = open_npy_array(env, files[i]); });
  for (size_t i = 0; i < files.size(); ++i) {
    const std::string& name = arrays[i].field.name;
    const auto same = [&](const StoredArray& array) { return array.field.name == name; };
    if (std::find_if(arrays.begin(), arrays.begin() + ptrdiff_t(i), same) !=
        arrays.begin() + ptrdiff_t(i))
      fail(ErrorKind::kUsage, "two files hold an array \"" + name + "\"", store_name(files[i]),
           "Rename one of the files");
  }
  return make_array_source(std::move(arrays), choice,
                           store_name(files.size() == 1 ? files[0] : list));
}

std::unique_ptr<Dataset> open_npz(Env& env, const std::string& rest) {
  std::string url = rest;
  const ArrayChoice choice = take_array_choice(url);
  const std::shared_ptr<const ReadableFile> file = env.open_readable(url);
  const std::string path = store_name(url);
  std::vector<StoredArray> arrays;
  for (const ZipMember& member : read_zip_directory(*file, path)) {
    const std::string name = without_ending(member.name);
    const bool wanted = choice.fields.empty() || std::ranges::count(choice.fields, name) > 0;
    const auto same = [&](const StoredArray& array) { return array.field.name == name; };
    if (std::ranges::any_of(arrays, same))
      fail(ErrorKind::kData, "the archive holds the array \"" + name + "\" twice", path,
           "Write it again with numpy.savez");
    if (wanted) arrays.push_back(open_member(file, member, path));
  }
  if (arrays.empty())
    fail(ErrorKind::kData,
         choice.fields.empty() ? "the archive holds no array"
                               : "the archive holds none of the fields",
         path, "Write it with numpy.savez, as numpy.savez(\"a.npz\", x=x, y=y)");
  return make_array_source(std::move(arrays), choice, path);
}

}  // namespace saturate
