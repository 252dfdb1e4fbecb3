// Labels of an archive's members: grouped by key, like webdataset.
#pragma once

#include <cstdint>
#include <map>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

namespace saturate {

constexpr uint32_t kNoLabel = UINT32_MAX;

// webdataset's base_plus_ext: the key is the path up to the first dot of the file name.
struct SplitName {
  std::string_view key, base, ending;  // "a/b.seg.png": "a/b", "b.seg.png", "seg.png"
};
SplitName split_name(std::string_view name);

// "cls" and "json", in any case.
bool is_label_ending(std::string_view ending);
bool is_json_ending(std::string_view ending);

// A JSON text with the "label" of another one alone, which may be long. If the text
// is not valid JSON, neither is the result, which has the word "label" if the text has it.
std::string reduced_json(const std::string& text);

// Consecutive members with the same key.
struct PairGroup {
  std::string key;
  size_t first_entry = 0;                // index of the archive's images
  std::optional<std::string> cls, json;  // contents of the label members
  std::string unread;                    // the ending of one that is too large; else empty

  void start(std::string_view new_key, size_t entry);
  // `text`: empty if it is too large.
  void add_label(std::string_view ending, std::optional<std::string> text);
  bool has_members() const { return cls || json || !unread.empty(); }
  // Whether there is a .cls, or a .json with a "label".
  bool has_label() const;
  // The text of .cls, else the "label" of .json; empty if there is neither. Fails with kData,
  // naming `where`, on an empty .cls, and if the label may be in a file that is too large or no
  // valid JSON.
  std::optional<std::string> label(const std::string& where) const;
};

// Distinct label texts, numbered in order of appearance.
class LabelTable {
 public:
  uint32_t add(std::string_view text);
  size_t size() const { return numbers_.size(); }

  // Each returns the label of each number, an index into `classes`, which it fills. Here the texts
  // are class names.
  std::vector<uint32_t> settle_names(std::vector<std::string>& classes) const;
  // If all texts are integers they are the labels themselves, and the classes are numbered; else as
  // settle_names(). Fails with kData on a number that is too large.
  std::vector<uint32_t> settle_numbers_or_names(const std::string& where,
                                                std::vector<std::string>& classes) const;

 private:
  std::map<std::string, uint32_t, std::less<>> numbers_;
};

}  // namespace saturate
