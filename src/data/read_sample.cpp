#include "data/read_sample.h"

#include <exception>
#include <new>
#include <string>
#include <utility>

#include "base/printable.h"
#include "saturate/data/error.h"

namespace saturate {
namespace {

std::string sample_place(size_t index, const std::string& name) {
  const std::string place = "sample " + std::to_string(index);
  return name.empty() || name == place ? place : place + ", " + name;
}

[[noreturn]] void fail_read(const std::string& text, size_t index, const std::string& name) {
  fail(ErrorKind::kData, text.empty() ? "the dataset cannot read it" : text,
       sample_place(index, name), "Fix it, or skip such samples with data.on_error=skip");
}

template <class Read>
auto naming_sample(size_t index, const std::string& name, const Read& read) {
  try {
    return read();
  } catch (const Error&) {
    throw;
  } catch (const std::bad_alloc&) {
    throw;
  } catch (const std::exception& error) {
    fail_read(first_line(error.what()), index, name);
  } catch (...) {
    fail_read("the dataset threw something other than a std::exception", index, name);
  }
}

void require_label(const Dataset& dataset, size_t index, const std::string& name, int64_t label) {
  const auto classes = int64_t(dataset.classes().size());
  if (dataset.has_masks() || classes == 0 || (label >= 0 && label < classes)) return;
  fail(ErrorKind::kData,
       "its label is " + std::to_string(label) + ", and there are " + std::to_string(classes) +
           " classes, numbered from 0",
       sample_place(index, name), "Give each sample the position of its class in classes()");
}

void require_fields(const Dataset& dataset, size_t index, const Sample& sample) {
  const std::vector<TensorField>& fields = dataset.tensors();
  const bool is_tensors = sample.encoding == SampleEncoding::kTensors;
  if (is_tensors != fields.empty() &&
      (!is_tensors || sample.bytes.size() == bytes_of(std::span(fields))))
    return;
  fail(ErrorKind::kData,
       fields.empty()
           ? "the sample is of tensors, and the dataset describes none"
           : "the sample does not have the " + std::to_string(bytes_of(std::span(fields))) +
                 " bytes of tensors that the dataset describes",
       sample_place(index, sample.name),
       "Return the values of all fields of tensors(), as SampleEncoding::kTensors");
}

}  // namespace

void read_sample(const Dataset& dataset, size_t index, Sample& out) {
  out.name.clear();
  naming_sample(index, out.name, [&] { dataset.read(index, out); });
  if (out.name.empty()) out.name = sample_place(index, "");
  const int64_t label = std::exchange(out.label, -1);  // an invalid label must not be used
  require_label(dataset, index, out.name, label);
  require_fields(dataset, index, out);
  out.label = label;
}

const DecodedSample* decoded_sample(const Dataset& dataset, size_t index) {
  const DecodedSample* const found =
      naming_sample(index, "", [&] { return dataset.decoded(index); });
  if (found) require_label(dataset, index, found->name, found->label);
  return found;
}

}  // namespace saturate
