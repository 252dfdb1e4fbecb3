// An Env file in the form of torch's archive reader interface.
#pragma once

#include <caffe2/serialize/read_adapter_interface.h>

#include <algorithm>
#include <memory>
#include <string>
#include <utility>

#include "saturate/data/env.h"

namespace saturate {

class EnvReader : public caffe2::serialize::ReadAdapterInterface {
 public:
  explicit EnvReader(std::unique_ptr<ReadableFile> file) : file_(std::move(file)) {}
  size_t size() const override { return file_->size(); }
  // Stops at the end of the file.
  size_t read(uint64_t at, void* out, size_t count, const char*) const override {
    if (at >= file_->size()) return 0;
    const size_t n = std::min<size_t>(count, file_->size() - at);
    file_->read_at(at, std::span(static_cast<std::byte*>(out), n));
    return n;
  }

 private:
  std::unique_ptr<ReadableFile> file_;
};

}  // namespace saturate
