# cmake -D "FILES=name=path;..." -D OUT=file.cpp -P embed_files.cmake: a source in which the function
# `name` returns the bytes of the file at `path`, or of all files of that name, one after the other.
foreach(entry IN LISTS FILES)
  string(REGEX MATCH "^([a-z_]+)=(.*)$" matched "${entry}")
  set(name ${CMAKE_MATCH_1})
  file(READ ${CMAKE_MATCH_2} hex HEX)
  string(REGEX REPLACE "(................................................)" "\\1\n" hex "${hex}")
  string(REGEX REPLACE "([0-9a-f][0-9a-f])" "0x\\1," bytes "${hex}")
  string(APPEND ${name}_bytes "${bytes}\n")
  list(APPEND names ${name})
endforeach()
list(REMOVE_DUPLICATES names)
set(text "#include \"report/report.h\"\n\nnamespace saturate {\n")
foreach(name IN LISTS names)
  string(APPEND text "\nstatic const unsigned char ${name}_bytes[] = {\n${${name}_bytes}};\n"
         "std::string_view ${name}() {\n"
         "  return {reinterpret_cast<const char*>(${name}_bytes), sizeof ${name}_bytes};\n}\n")
endforeach()
string(APPEND text "\n}  // namespace saturate\n")
file(WRITE ${OUT} "${text}")
