# SPDX-License-Identifier: Apache-2.0
# Stands in for ESP-IDF, so that its example builds for this machine: project() adds main, all of components/ and
# EXTRA_COMPONENT_DIRS, and
# idf_component_register() takes the arguments that "Build System" in ESP-IDF's documents lists, and no others.
include_guard(GLOBAL)

function(idf_component_register)
    cmake_parse_arguments(
        PARSE_ARGV 0 given "WHOLE_ARCHIVE" "KCONFIG;KCONFIG_PROJBUILD"
        "SRCS;SRC_DIRS;EXCLUDE_SRCS;INCLUDE_DIRS;PRIV_INCLUDE_DIRS;REQUIRES;PRIV_REQUIRES;LDFRAGMENTS;REQUIRED_IDF_TARGETS;EMBED_FILES;EMBED_TXTFILES")
    if(given_UNPARSED_ARGUMENTS)
        message(FATAL_ERROR "idf_component_register does not know ${given_UNPARSED_ARGUMENTS}")
    endif()
    get_filename_component(name ${CMAKE_CURRENT_LIST_DIR} NAME) # a component's name is its folder's
    add_library(__idf_${name} STATIC ${given_SRCS})
    target_include_directories(__idf_${name} PUBLIC ${given_INCLUDE_DIRS} PRIVATE ${given_PRIV_INCLUDE_DIRS})
    target_compile_definitions(__idf_${name} PUBLIC ESP_PLATFORM)
    foreach(other ${given_REQUIRES} ${given_PRIV_REQUIRES})
        target_link_libraries(__idf_${name} PUBLIC __idf_${other})
    endforeach()
    set(COMPONENT_LIB __idf_${name} PARENT_SCOPE)
endfunction()

macro(project name)
    _project(${name} C)
    add_library(__idf_main_needs INTERFACE)
    file(GLOB components ${CMAKE_SOURCE_DIR}/components/*)
    foreach(component ${EXTRA_COMPONENT_DIRS} ${components} ${CMAKE_SOURCE_DIR}/main)
        get_filename_component(folder ${component} ABSOLUTE)
        get_filename_component(folder ${folder} NAME)
        add_subdirectory(${component} ${folder})
        if(NOT folder STREQUAL "main") # which needs all others, unless it says which
            target_link_libraries(__idf_main_needs INTERFACE __idf_${folder})
        endif()
    endforeach()
    file(WRITE ${CMAKE_BINARY_DIR}/start.c "void app_main(void);\nint main(void)\n{\n    app_main();\n    return 0;\n}\n")
    add_executable(${name} ${CMAKE_BINARY_DIR}/start.c)
    target_link_libraries(__idf_main PUBLIC __idf_main_needs)
    target_link_libraries(${name} PRIVATE __idf_main)
endmacro()
