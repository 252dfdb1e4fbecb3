// The folder of the index files that data.index = "auto" keeps.
#pragma once

#include <string>

#include "saturate/data/env.h"

namespace saturate {

// An absolute path, the same through any symbolic link.
std::string path_without_links(const std::string& path);

// Where data.index = "auto" keeps the index of a source: in the user's cache folder, under a name
// that path_without_links() of the source determines. Empty if there is no such folder.
std::string index_path_of(Env& env, const std::string& uri);

// Whether an index is in that folder.
bool is_in_index_folder(const std::string& path);
// An index there is in use: trim_index_folder() removes others first.
void mark_index_used(const std::string& path);
// If the index files there take more than 16 GB, removes those that were not used for longest, but
// neither `own` nor any that another process is saving.
void trim_index_folder(Env& env, const std::string& own);

}  // namespace saturate
