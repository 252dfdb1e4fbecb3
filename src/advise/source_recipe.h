// A first recipe for images that have none.
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
// after them, count if others depend on them. A folder with train/ in it is trained on that part,
// and evaluated on val/ (or valid/, validation/, eval/, test/); else every few images are held out,
// unless there are fewer than two for a class. Reads the headers of some images, and no pixels.
// Fails with kUsage on a run's folder, with kData if there are fewer than two classes, and as
// open_dataset() does.
std::vector<std::string> settings_for_source(Env& env, const std::string& source, bool gpu,
                                             std::span<const std::string> overrides = {});

}  // namespace saturate
