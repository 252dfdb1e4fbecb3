// Drawing the images of synth: sources.
#pragma once

#include <string_view>

#include "saturate/data/image.h"
#include "saturate/data/random.h"

namespace saturate {

// Sorted bytewise, as class names are.
constexpr std::string_view kShapeNames[] = {"checker", "crescent", "cross", "disc",    "dots",
                                            "ring",    "square",   "star",  "stripes", "triangle"};
constexpr int kShapeCount = 10;

// One antialiased shape of random colour, position, size and rotation, over a gradient with noise
// and distractors. It may be lighter or darker than the background, so no weighted sum of pixels
// separates the shapes. All randomness comes from `random`. `difficulty` in [0, 1]. `mask`, if not
// null, gets [size, size]: shape + 1 where a pixel's centre is in the shape, else 0.
void render_shape(int shape, int size, double difficulty, RandomStream& random, Image& out,
                  uint8_t* mask = nullptr);

}  // namespace saturate
