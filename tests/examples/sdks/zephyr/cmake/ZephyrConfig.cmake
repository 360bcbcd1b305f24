# SPDX-License-Identifier: Apache-2.0
# Stands in for Zephyr, so that its example builds for this machine: reads prj.conf, adds the folder that `cmake` names in
# zephyr/module.yml of every module in EXTRA_ZEPHYR_MODULES, and knows the functions that a module calls. The example's
# own sources go to `app`.
project(Zephyr-Kernel C)
add_executable(app)
target_compile_definitions(app PRIVATE __ZEPHYR__)
target_include_directories(app PRIVATE ${CMAKE_CURRENT_LIST_DIR}/../include)

function(zephyr_library_named name)
    add_library(${name} STATIC)
    target_link_libraries(app PRIVATE ${name})
    set(ZEPHYR_CURRENT_LIBRARY ${name} PARENT_SCOPE)
endfunction()

function(zephyr_library_sources)
    target_sources(${ZEPHYR_CURRENT_LIBRARY} PRIVATE ${ARGN})
endfunction()

function(zephyr_library_compile_options)
    target_compile_options(${ZEPHYR_CURRENT_LIBRARY} PRIVATE ${ARGN})
endfunction()

function(zephyr_include_directories)
    target_include_directories(app PRIVATE ${ARGN})
    target_include_directories(${ZEPHYR_CURRENT_LIBRARY} PRIVATE ${ARGN})
endfunction()

file(STRINGS ${CMAKE_SOURCE_DIR}/prj.conf settings REGEX "^CONFIG_")
foreach(setting ${settings})
    string(REGEX MATCH "^(CONFIG_[A-Z0-9_]+)=(.*)$" matched ${setting})
    set(${CMAKE_MATCH_1} ${CMAKE_MATCH_2})
endforeach()
foreach(module ${EXTRA_ZEPHYR_MODULES})
    file(STRINGS ${module}/zephyr/module.yml folder REGEX "^  cmake:")
    string(REGEX REPLACE "^  cmake: *" "" folder ${folder})
    add_subdirectory(${module}/${folder} modules/${folder})
endforeach()
