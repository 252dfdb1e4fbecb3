// How members of an archive get their labels: by key, as webdataset groups them.
#pragma once

#include <cstdint>
#include <map>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

namespace saturate {

constexpr uint32_t kNoLabel = UINT32_MAX;

// webdataset's base_plus_ext: the key is what precedes the first dot of the file's own name, with
// the folders before it.
struct SplitName {
  std::string_view key, base, ending;  // "a/b.seg.png": "a/b", "b.seg.png", "seg.png"
};
SplitName split_name(std::string_view name);

// "cls" and "json", in any case.
bool is_label_ending(std::string_view ending);

// Members that follow one another and share a key.
struct PairGroup {
  std::string key;
  size_t first_entry = 0;                // of the archive's images
  std::optional<std::string> cls, json;  // what the label members hold

  void start(std::string_view new_key, size_t entry);
  void add_label(std::string_view ending, std::string text);
  // That of .cls, else the "label" of .json; empty where there is neither. Fails with kData, naming
  // `where`, on a .cls that says nothing.
  std::optional<std::string> label(const std::string& where) const;
};

// Distinct label texts, numbered as they appear.
class LabelTable {
 public:
  uint32_t add(std::string_view text);
  size_t size() const { return numbers_.size(); }

  // Each gives the label of each number, a position in `classes`, which it fills.
  // The texts are class names.
  std::vector<uint32_t> settle_names(std::vector<std::string>& classes) const;
  // Where all texts are whole numbers they are the labels themselves, and the classes are numbered;
  // else as settle_names(). Fails with kData on a number that is too large.
  std::vector<uint32_t> settle_numbers_or_names(const std::string& where,
                                                std::vector<std::string>& classes) const;

 private:
  std::map<std::string, uint32_t, std::less<>> numbers_;
};

}  // namespace saturate
