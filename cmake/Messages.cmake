# Says that something is off. `make` passes --log-level=NOTICE, so that it shows this, but only once in a build folder,
# which is configured again after each commit.
function(say_once name text)
  if("${said_${name}}" STREQUAL "${text}")
    message(STATUS "${text}")
  else()
    message(NOTICE "${text}")
    set(said_${name} "${text}" CACHE INTERNAL "Shown when it was configured first")
  endif()
endfunction()
