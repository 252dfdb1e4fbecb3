// synth:KEY=VALUE,...: images rendered on the fly and encoded as JPEG, to exercise the whole path
// of a real dataset. Sample i depends only on (seed, split, i) and the image options.
#include <algorithm>
#include <array>
#include <cmath>
#include <numbers>

#include "data/synth_tensors.h"

namespace saturate {
namespace {

// ---- Shapes ------------------------------------------------------------------------------------

// Sorted bytewise, as class names are.
constexpr std::string_view kShapeNames[] = {"checker", "crescent", "cross", "disc",    "dots",
                                            "ring",    "square",   "star",  "stripes", "triangle"};
constexpr int kShapeCount = 10;

// The outlines of the shapes as signed distances: negative inside, 0 on the edge, in units of the
// shape's radius. Formulas after Inigo Quilez, "2D distance functions",
// https://iquilezles.org/articles/distfunctions2d/.
struct Point {
  double x, y;
};

double disc_distance(Point p, double radius) {
  return std::hypot(p.x, p.y) - radius;
}

double box_distance(Point p, double half_width, double half_height) {
  const double dx = std::abs(p.x) - half_width, dy = std::abs(p.y) - half_height;
  return std::hypot(std::max(dx, 0.0), std::max(dy, 0.0)) + std::min(std::max(dx, dy), 0.0);
}

// A convex polygon's edge distance is enough here: `sides` lines at `apothem` from the centre.
double polygon_distance(Point p, int sides, double apothem) {
  double distance = -1e9;
  for (int i = 0; i < sides; ++i) {
    const double angle = 2 * std::numbers::pi * i / sides;
    distance = std::max(distance, p.x * std::cos(angle) + p.y * std::sin(angle) - apothem);
  }
  return distance;
}

// Five points of radius `outer`, valleys of radius `inner`.
double star_distance(Point p, double outer, double inner) {
  constexpr double kSector = std::numbers::pi / 5;
  const double radius = std::hypot(p.x, p.y);
  double angle = std::fmod(std::atan2(p.y, p.x) + 4 * kSector * 5, 2 * kSector);
  angle = std::min(angle, 2 * kSector - angle);  // 0 at a point, kSector in a valley
  const double x = radius * std::cos(angle), y = radius * std::sin(angle);
  // The line from the point (outer, 0) to the valley.
  const double ex = inner * std::cos(kSector) - outer, ey = inner * std::sin(kSector);
  return ((x - outer) * -ey + y * ex) / -std::hypot(ex, ey);
}

// Distance to the nearest edge of bands of `width`, negative within every second one.
double band_distance(double x, double width) {
  const double phase = std::fmod(x + 64 * width, 2 * width);
  return std::abs(phase - width) - width / 2;
}

// ---- Drawing -----------------------------------------------------------------------------------

using Color = std::array<double, 3>;  // RGB, 0 to 1

double luma(const Color& c) {
  return 0.299 * c[0] + 0.587 * c[1] + 0.114 * c[2];
}

Color draw_color(RandomStream& random) {
  Color color;
  for (double& channel : color) channel = random.next_double();
  return color;
}

// A colour whose luma differs from that of `from` by at least `contrast`.
Color draw_contrasting(RandomStream& random, const Color& from, double contrast) {
  for (int i = 0; i < 64; ++i) {
    const Color color = draw_color(random);
    if (std::abs(luma(color) - luma(from)) >= contrast) return color;
  }
  return luma(from) < 0.5 ? Color{1, 1, 1} : Color{0, 0, 0};
}

double shape_distance(int shape, Point p) {
  switch (shape) {
    case 0: {  // checker: every second one of 4 x 4 fields
      double distance = 1e9;
      for (int i = 0; i < 16; ++i) {
        const int column = i % 4, row = i / 4;
        if ((column + row) % 2) continue;
        const Point center{0.4 * column - 0.6, 0.4 * row - 0.6};
        distance = std::min(distance, box_distance({p.x - center.x, p.y - center.y}, 0.2, 0.2));
      }
      return distance;
    }
    case 1:  // crescent
      return std::max(disc_distance(p, 0.95), -disc_distance({p.x - 0.45, p.y}, 0.75));
    case 2:  // cross
      return std::min(box_distance(p, 0.95, 0.27), box_distance(p, 0.27, 0.95));
    case 3:
      return disc_distance(p, 0.85);
    case 4: {  // dots: as the five of a die
      double distance = disc_distance(p, 0.24);
      for (int i = 0; i < 4; ++i)
        distance = std::min(
            distance,
            disc_distance({p.x - (i & 1 ? 0.64 : -0.64), p.y - (i & 2 ? 0.64 : -0.64)}, 0.24));
      return distance;
    }
    case 5:
      return std::abs(disc_distance(p, 0.72)) - 0.2;
    case 6:
      return box_distance(p, 0.75, 0.75);
    case 7:
      return star_distance(p, 1.0, 0.42);
    case 8:
      return std::max(band_distance(p.x - 0.2, 0.4), box_distance(p, 1.0, 0.9));
    default:
      return polygon_distance(p, 3, 0.5);
  }
}

// Float RGB while drawing; rounded to bytes once at the end.
class Canvas {
 public:
  explicit Canvas(int size) : size_(size), pixels_(size_t(size) * size_t(size)) {}

  // distance(x, y) in pixels at pixel centres; one pixel wide antialiased edge.
  template <class Distance>
  void fill(const Color& color, const Distance& distance) {
    for (int y = 0; y < size_; ++y)
      for (int x = 0; x < size_; ++x) {
        const double cover = std::clamp(0.5 - distance(x + 0.5, y + 0.5), 0.0, 1.0);
        Color& pixel = at(x, y);
        for (size_t c = 0; c < 3; ++c) pixel[c] += cover * (color[c] - pixel[c]);
      }
  }

  void gradient(const Color& from, const Color& change, double angle) {
    const double cx = std::cos(angle) / size_, sx = std::sin(angle) / size_;
    for (int y = 0; y < size_; ++y)
      for (int x = 0; x < size_; ++x) {
        const double t = (x - size_ * 0.5) * cx + (y - size_ * 0.5) * sx;  // within +-0.71
        for (size_t c = 0; c < 3; ++c) at(x, y)[c] = from[c] + t * change[c];
      }
  }

  // Adds triangular noise of standard deviation `sigma`.
  void finish(RandomStream& random, double sigma, Image& out) const {
    const double scale = sigma * std::sqrt(6.0);
    out.resize(size_, size_);
    size_t i = 0;
    for (const Color& pixel : pixels_)
      for (double value : pixel) {
        const double noise = double(random.next_float()) + double(random.next_float()) - 1;
        out.pixels[i++] = uint8_t(std::clamp(value + noise * scale, 0.0, 1.0) * 255 + 0.5);
      }
  }

 private:
  Color& at(int x, int y) { return pixels_[size_t(y) * size_t(size_) + size_t(x)]; }

  int size_;
  std::vector<Color> pixels_;
};

// Small discs and bars behind the shape.
void draw_distractors(Canvas& canvas, int size, int count, RandomStream& random) {
  for (int i = 0; i < count; ++i) {
    const Color color = draw_color(random);
    const double x0 = random.uniform(0, size), y0 = random.uniform(0, size);
    const double angle = random.uniform(0, std::numbers::pi);
    const double radius = size * random.uniform(0.02, 0.06);
    const double length = random.bernoulli(0.5) ? size * random.uniform(0.1, 0.2) : 0;
    const double cosine = std::cos(angle), sine = std::sin(angle);
    canvas.fill(color, [&](double x, double y) {
      const double dx = x - x0, dy = y - y0;
      const double along = dx * cosine + dy * sine, across = dy * cosine - dx * sine;
      return std::hypot(along - std::clamp(along, -length, length), across) - radius;
    });
  }
}

// One antialiased shape of random colour, position, size and rotation, over a gradient with noise
// and distractors. It may be lighter or darker than the background, so no weighted sum of pixels
// separates the shapes. All randomness comes from `random`. `difficulty` in [0, 1]. `mask`, if not
// null, gets [size, size]: shape + 1 where a pixel's centre is in the shape, else 0.
void render_shape(int shape, int size, double difficulty, RandomStream& random, Image& out,
                  uint8_t* mask) {
  const Color background = draw_color(random);
  const Color foreground = draw_contrasting(random, background, 0.45 - 0.3 * difficulty);
  Color change = draw_color(random);
  for (double& channel : change) channel = (channel - 0.5) * (0.2 + 0.6 * difficulty);

  Canvas canvas(size);
  canvas.gradient(background, change, random.uniform(0, 2 * std::numbers::pi));
  draw_distractors(canvas, size, int(std::lround(8 * difficulty)), random);

  // The relative size of the shape, and how far its centre may be displaced.
  const double radius = size * random.uniform(0.40 - 0.14 * difficulty, 0.46 - 0.06 * difficulty);
  const double room = size * 0.5 - radius * 0.9;
  const double x0 = size * 0.5 + random.uniform(-room, room);
  const double y0 = size * 0.5 + random.uniform(-room, room);
  const double angle = random.uniform(0, 2 * std::numbers::pi);
  const double cosine = std::cos(angle) / radius, sine = std::sin(angle) / radius;
  const auto distance = [&](double x, double y) {
    const double dx = x - x0, dy = y - y0;
    return radius * shape_distance(shape, {dx * cosine + dy * sine, dy * cosine - dx * sine});
  };
  canvas.fill(foreground, distance);
  for (int y = 0; mask != nullptr && y < size; ++y)
    for (int x = 0; x < size; ++x)
      mask[y * size + x] = distance(x + 0.5, y + 0.5) < 0 ? uint8_t(shape + 1) : 0;
  canvas.finish(random, 0.01 + 0.12 * difficulty, out);
}

// ---- The source --------------------------------------------------------------------------------

struct SynthOptions {
  int64_t size = 32;     // side, pixels
  int64_t count = 2000;  // images
  int64_t classes = 10;
  double difficulty = 0.3;
  uint64_t seed = 0;
  uint32_t split = 0;  // 0 train, 1 test: disjoint streams
  int64_t quality = 90;
  bool masks = false;
};

class SynthSource : public IndexedSource {
 public:
  explicit SynthSource(const SynthOptions& options)
      : options_(options), classes_(kShapeNames, kShapeNames + options.classes) {
    if (options.masks) classes_.insert(classes_.begin(), "background");
  }

  size_t size() const override { return size_t(options_.count); }
  const std::vector<std::string>& classes() const override { return classes_; }
  bool has_masks() const override { return options_.masks; }

  int64_t label(size_t index) const override { return options_.masks ? 0 : shape_of(index); }

  void read(size_t index, Sample& out) const override {
    thread_local Image image;
    RandomStream random(options_.seed, options_.split, index, RandomUse::kSynthetic);
    const int shape = shape_of(index);
    out.label = label(index);
    out.encoding = SampleEncoding::kEncoded;
    out.name = (options_.split == 0 ? "synth:train:" : "synth:test:") + std::to_string(index);
    render_shape(shape, int(options_.size), options_.difficulty, random, image, mask_of(out));
    out.bytes = encode_jpeg(image, int(options_.quality), true);
  }

 private:
  int shape_of(size_t index) const { return int(int64_t(index) % options_.classes); }

  // The mask's buffer, or null if there is none.
  uint8_t* mask_of(Sample& out) const {
    if (!options_.masks) return nullptr;
    out.mask.is_raw = true;
    out.mask.width = out.mask.height = int(options_.size);
    out.mask.name = out.name;
    out.mask.bytes.resize(size_t(options_.size * options_.size));
    return reinterpret_cast<uint8_t*>(out.mask.bytes.data());
  }

  SynthOptions options_;
  std::vector<std::string> classes_;
};

}  // namespace

std::unique_ptr<Dataset> open_synth(Env&, const std::string& rest) {
  SynthOptions options;
  SynthArguments arguments("synth", rest);
  arguments.take<int64_t>("size", 8, 1024, options.size);
  arguments.take<int64_t>("count", 1, 100'000'000, options.count);
  arguments.take<int64_t>("classes", 2, kShapeCount, options.classes);
  arguments.take<double>("difficulty", 0, 1, options.difficulty);
  arguments.take<uint64_t>("seed", 0, UINT64_MAX, options.seed);
  arguments.take("split", "train", "test", options.split);
  arguments.take<int64_t>("quality", 1, 100, options.quality);
  arguments.take("masks", "false", "true", options.masks);
  arguments.finish();
  return std::make_unique<SynthSource>(options);
}

}  // namespace saturate
