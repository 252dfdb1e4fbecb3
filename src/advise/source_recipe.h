// A recipe to begin with, for images that nobody has written one for.
#pragma once

#include <span>
#include <string>
#include <vector>

#include "saturate/data/env.h"

namespace saturate {

// Whether the text names images (a folder, an archive by its ending, SCHEME:REST) rather than a
// recipe's file.
bool names_source(Env& env, const std::string& text);

// Settings of `saturate train SOURCE`, each "section.key=value", by the number of images, their
// size and classes, and whether there is a GPU to train on; `overrides`, which are to be applied
// after them, count where others depend on them. Of a folder with train/ in it, that part is
// trained on, and val/ (or valid/, validation/, eval/, test/) evaluated; else every few images are
// held out, unless there are fewer than two for a class. Headers of some images are read, and no
// pixels. Fails with kUsage on a run's folder, with kData where there are no two classes to tell
// apart, and as open_dataset() does.
std::vector<std::string> settings_for_source(Env& env, const std::string& source, bool gpu,
                                             std::span<const std::string> overrides = {});

}  // namespace saturate
