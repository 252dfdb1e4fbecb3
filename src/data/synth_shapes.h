// The outlines of the synthetic shapes as signed distances: negative inside, 0 on the edge, in
// units of the shape's radius. Formulas after Inigo Quilez, "2D distance functions",
// https://iquilezles.org/articles/distfunctions2d/.
#pragma once

#include <algorithm>
#include <cmath>

namespace saturate {

struct Point {
  double x, y;
};

inline double disc_distance(Point p, double radius) {
  return std::hypot(p.x, p.y) - radius;
}

inline double box_distance(Point p, double half_width, double half_height) {
  const double dx = std::abs(p.x) - half_width, dy = std::abs(p.y) - half_height;
  return std::hypot(std::max(dx, 0.0), std::max(dy, 0.0)) + std::min(std::max(dx, dy), 0.0);
}

// A convex polygon's edge distance is enough here: `sides` lines at `apothem` from the centre.
inline double polygon_distance(Point p, int sides, double apothem) {
  double distance = -1e9;
  for (int i = 0; i < sides; ++i) {
    const double angle = 2 * 3.14159265358979323846 * i / sides;
    distance = std::max(distance, p.x * std::cos(angle) + p.y * std::sin(angle) - apothem);
  }
  return distance;
}

// Five points of radius `outer`, valleys of radius `inner`.
inline double star_distance(Point p, double outer, double inner) {
  constexpr double kSector = 3.14159265358979323846 / 5;
  const double radius = std::hypot(p.x, p.y);
  double angle = std::fmod(std::atan2(p.y, p.x) + 4 * kSector * 5, 2 * kSector);
  angle = std::min(angle, 2 * kSector - angle);  // 0 at a point, kSector in a valley
  const double x = radius * std::cos(angle), y = radius * std::sin(angle);
  // The line from the point (outer, 0) to the valley.
  const double ex = inner * std::cos(kSector) - outer, ey = inner * std::sin(kSector);
  return ((x - outer) * -ey + y * ex) / -std::hypot(ex, ey);
}

// Distance to the nearest edge of bands of `width`, negative within every second one.
inline double band_distance(double x, double width) {
  const double phase = std::fmod(x + 64 * width, 2 * width);
  return std::abs(phase - width) - width / 2;
}

}  // namespace saturate
