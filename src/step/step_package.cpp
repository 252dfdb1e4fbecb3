#include "step/step_package.h"

#include <c10/util/Exception.h>
#include <caffe2/serialize/inline_container.h>
#include <dlfcn.h>
#include <fmt/format.h>
#include <torch/headeronly/version.h>

#include <algorithm>
#include <iterator>
#include <map>
#include <set>
#include <sstream>

#include "base/checksum.h"
#include "base/files.h"
#include "base/printable.h"
#include "base/system_file.h"
#include "model/model_files.h"
#include "recipe/option_row.h"
#include "saturate/data/error.h"

namespace saturate {
namespace {

using nlohmann::json;

constexpr int kFormat = 2;  // format 1 had wrong gradients of attention on the CPU
constexpr const char* kAbout = "extra/saturate.json";
constexpr const char* kLibrary = "data/aotinductor/model/step.so";

std::vector<std::byte> read_record(caffe2::serialize::PyTorchStreamReader& archive,
                                   const std::string& name) {
  const auto [data, size] = archive.getRecord(name);
  const auto* bytes = static_cast<const std::byte*>(data.get());
  return {bytes, bytes + size};
}

json json_of(const OptionValue& value) {
  return std::visit([](const auto& each) { return json(each); }, value);
}

// "KEY A, not B" for each setting in which the package and this recipe differ.
void compare_settings(const json& settings, const Recipe& recipe, std::vector<std::string>& found) {
  const auto compare = [&](const std::string& key, const json& here) {
    if (settings.contains(key) && settings[key] != here)
      found.push_back(fmt::format("{} {}, not {}", key, settings[key].dump(), here.dump()));
  };
  for (const OptionRow& row : option_table()) compare(row.key, json_of(row.get(recipe)));
  compare("train.channels_last", recipe.train.channels_last);  // no key of a recipe
}

// Sizes and strides; strides only of dimensions above one, as the others are arbitrary.
std::string layout(const std::vector<int64_t>& sizes, const std::vector<int64_t>& strides) {
  std::vector<int64_t> telling = strides;
  for (size_t d = 0; d < sizes.size(); ++d)
    if (sizes[d] <= 1) telling[d] = 0;
  return fmt::format("[{}] with strides [{}]", fmt::join(sizes, ", "), fmt::join(telling, ", "));
}

// Adds the first tensor that differs in name, shape, memory order or type.
void compare_tensors(const json& listed, const std::vector<NamedTensor>& own, const char* kind,
                     std::vector<std::string>& found) {
  std::map<std::string, std::string> expected;
  for (const json& tensor : listed)
    expected[tensor.at("name")] = layout(tensor.at("shape"), tensor.at("strides")) + " " +
                                  tensor.at("type").get<std::string>();
  for (const auto& [name, tensor] : own) {
    const auto there = expected.extract(name);
    const std::string here =
        layout(tensor.sizes().vec(), tensor.strides().vec()) + " " + toString(tensor.scalar_type());
    if (!there)
      found.push_back(fmt::format("a model without the {} {}", kind, name));
    else if (there.mapped() != here)
      found.push_back(fmt::format("{} {} {}, not {}", kind, name, there.mapped(), here));
    else
      continue;
    return;
  }
  if (!expected.empty())
    found.push_back(fmt::format("a model with the {} {}", kind, expected.begin()->first));
}

void compare_gradients(const json& gradients, const std::vector<NamedTensor>& parameters,
                       std::vector<std::string>& found) {
  for (const auto& [name, tensor] : parameters) {
    if (!tensor.requires_grad()) continue;
    if (std::find(gradients.begin(), gradients.end(), name) != gradients.end()) continue;
    found.push_back("a model whose " + name + " is frozen");
    return;
  }
}

std::set<std::string> processor_features() {
  std::istringstream words(system_line("/proc/cpuinfo", "flags"));
  return std::set<std::string>(std::istream_iterator<std::string>(words), {});
}

void compare_processor(const json& features, std::vector<std::string>& found) {
  const std::set<std::string> own = processor_features();
  for (const auto& feature : features.get<std::vector<std::string>>()) {
    if (own.contains(feature)) continue;
    found.push_back("a processor with " + feature);
    return;
  }
}

// CPU packages name none; on a GPU they differ in train.device already.
void compare_gpu(const json& about, const std::string& own, std::vector<std::string>& found) {
  if (own.empty() || about["settings"].value("train.device", "") == "cpu") return;
  const std::string there = about.value("architecture", "an unnamed architecture");
  if (there != own) found.push_back(fmt::format("a GPU of {}, not {}", there, own));
}

// Checks the fields that later code reads, so that a handwritten package cannot crash it.
void require_complete(const json& about) {
  const json& settings = about.at("settings");
  if (!settings.is_object() || settings.empty()) throw std::runtime_error("it has no settings");
  about.at("torch").get_ref<const std::string&>();
  if (about.at("part").get<int>() < 1) throw std::runtime_error("its micro-batch is empty");
  about.at("checksum").get<uint32_t>();
  about.at("processor").get<std::vector<std::string>>();
  about.value("architecture", "");
  settings.value("train.device", "");
  about.at("gradients").get<std::vector<std::string>>();
  for (const char* kind : {"input", "target"}) {
    if (!about.contains(kind)) continue;
    about[kind].at("type").get_ref<const std::string&>();
    about[kind].at("shape").get<std::vector<int64_t>>();
  }
  for (const char* kind : {"parameters", "buffers"}) {
    for (const json& tensor : about.at(kind)) {
      const auto shape = tensor.at("shape").get<std::vector<int64_t>>();
      if (tensor.at("strides").get<std::vector<int64_t>>().size() != shape.size())
        throw std::runtime_error("a tensor has different numbers of strides and sizes");
      tensor.at("name").get_ref<const std::string&>();
      tensor.at("type").get_ref<const std::string&>();
    }
  }
}

StepPackage read_archive(Env& env, const std::string& path) {
  caffe2::serialize::PyTorchStreamReader archive(
      std::make_shared<EnvReader>(env.open_readable(path)));
  if (!archive.hasRecord(kAbout)) throw std::runtime_error(fmt::format("it has no {}", kAbout));
  const std::vector<std::byte> text = read_record(archive, kAbout);
  StepPackage package{path,
                      json::parse(reinterpret_cast<const char*>(text.data()),
                                  reinterpret_cast<const char*>(text.data() + text.size())),
                      {}};
  const int format = package.about.at("format").get<int>();
  if (format != kFormat)
    throw std::runtime_error(
        fmt::format("its format is {}, and this version reads {}", format, kFormat));
  require_complete(package.about);
  package.library = read_record(archive, kLibrary);
  if (checksum_of(package.library) != package.about["checksum"].get<uint32_t>())
    throw std::runtime_error("its library is damaged");
  return package;
}

// 2.15 of 2.15.1. Within a minor release code for one version runs on the others.
std::string minor_of(const std::string& version) {
  return version.substr(0, version.find('.', version.find('.') + 1));
}

}  // namespace

void fail_package(const std::string& problem, const std::string& path) {
  const std::string tool = shipped_file(Env::posix(), "tools/compile_step.py");
  fail(ErrorKind::kUsage, "the compiled step cannot be used: " + problem, path,
       fmt::format("Make one for this recipe: python3 {} RECIPE.toml --out {}",
                   tool.empty() ? "tools/compile_step.py" : tool, path));
}

StepPackage read_step_package(Env& env, const std::string& path) {
  try {
    return read_archive(env, path);
  } catch (const Error& error) {
    fail_package(error.reason(), path);
  } catch (const c10::Error&) {  // its text comes from torch's zip library
    fail_package("it is not a PT2 archive, or it is truncated or damaged", path);
  } catch (const std::exception& error) {
    fail_package(first_line(error.what()), path);
  }
}

std::string gpu_architecture(const at::Device& device) {
  if (!device.is_cuda()) return {};
  // From the CUDA runtime bundled with LibTorch, which a build without CUDA headers can use too.
  using GetAttribute = int (*)(int* value, int attribute, int device);
  constexpr int kMajor = 75, kMinor = 76;  // cudaDevAttrComputeCapability*
  const auto get = reinterpret_cast<GetAttribute>(dlsym(RTLD_DEFAULT, "cudaDeviceGetAttribute"));
  const int index = std::max<int>(device.index(), 0);  // at::kCUDA alone has none
  int major = 0, minor = 0;
  if (!get || get(&major, kMajor, index) != 0 || get(&minor, kMinor, index) != 0) return {};
  return fmt::format("sm_{}{}", major, minor);
}

void require_fit(const StepPackage& package, const Recipe& recipe, Model& model, int processes,
                 const std::string& architecture) {
  const json& about = package.about;
  std::vector<std::string> found;
  if (const auto made = about["torch"].get<std::string>();
      minor_of(made) != minor_of(TORCH_VERSION))
    found.push_back(fmt::format("torch {}, not {}", made, TORCH_VERSION));
  compare_processor(about["processor"], found);
  compare_gpu(about, architecture, found);
  const int micro_batch = recipe.train.batch / (recipe.train.accumulate * processes);
  if (about["part"] != micro_batch)  // "part" is this format's name of it
    found.push_back(fmt::format("micro-batches of {} samples, not {}{}", about["part"].get<int>(),
                                micro_batch,
                                processes > 1 ? fmt::format(" (--processes {})", processes) : ""));
  compare_settings(about["settings"], recipe, found);
  if (found.empty()) {  // otherwise differences that follow from these
    compare_tensors(about["parameters"], model.parameters(), "parameter", found);
    compare_tensors(about["buffers"], model.buffers(), "buffer", found);
    compare_gradients(about["gradients"], model.parameters(), found);
  }
  if (!found.empty())
    fail_package(fmt::format("it was made for {}", fmt::join(found, "; ")), package.path);
}

}  // namespace saturate
