# Files embedded in the command and the Python package: `report_assets` is a generated source that defines, for each of
# them, the function that src/report/report.h declares.

find_file(SATURATE_CHART_JS chart.min.js PATHS /usr/share/javascript/chart.js
          DOC "Chart.js 3, as one minified file (Debian: libjs-chart.js)" NO_DEFAULT_PATH)
set(chart_js ${SATURATE_CHART_JS})
if(NOT SATURATE_CHART_JS)
  message(WARNING "Chart.js 3 not found: reports will have tables and no charts. Set SATURATE_CHART_JS to chart.min.js")
  set(chart_js ${PROJECT_BINARY_DIR}/no_charts.js)
  file(CONFIGURE OUTPUT ${chart_js} CONTENT "// built without Chart.js\n")
endif()

set(report_dir ${PROJECT_SOURCE_DIR}/src/report/page)
set(scripts dom head sections charts timeline page)  # page.js comes last: it starts
list(TRANSFORM scripts REPLACE "(.+)" "page_js=${report_dir}/\\1.js")
set(embedded page_html=${report_dir}/page.html page_css=${report_dir}/page.css ${scripts}
             chart_js=${chart_js})
list(TRANSFORM embedded REPLACE "^[a-z_]+=" "" OUTPUT_VARIABLE embedded_files)
set(report_assets ${PROJECT_BINARY_DIR}/report_assets.cpp)
add_custom_command(
  OUTPUT ${report_assets}
  COMMAND ${CMAKE_COMMAND} -D "FILES=${embedded}" -D OUT=${report_assets}
          -P ${PROJECT_SOURCE_DIR}/cmake/embed_files.cmake
  DEPENDS ${embedded_files} ${PROJECT_SOURCE_DIR}/cmake/embed_files.cmake
  VERBATIM)
