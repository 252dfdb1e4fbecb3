#pragma once

#include <string>

namespace saturate {

// Text from data as a terminal may have it: one line, without what a terminal obeys or what turns
// the reading direction. Control characters (a raw byte 0x80 to 0x9f too, where it is no part of
// UTF-8), marks of direction and line separators become \x1b, byte by byte. All else, UTF-8 or not,
// is left as it is.
std::string printable(const std::string& text);

// Text as one word of a shell's command line, to be copied: quoted where it has to be, as $'...'
// where a quoted terminal control would be obeyed all the same.
std::string shell_word(const std::string& text);

// "saturate: warning: TEXT" on stderr, made printable.
void print_warning(const std::string& text);

}  // namespace saturate
