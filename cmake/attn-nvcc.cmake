# SPDX-License-Identifier: Apache-2.0
# Compiles CUDA kernels to fat binaries and embeds them. CMake's own language CUDA is not used: it knows one compiler a
# project, and no single one compiles for all the GPUs here.

# Debian's comes first: an older compiler's code runs with older drivers.
set(ATTN_NVCC "" CACHE STRING
  "nvcc commands; each architecture is compiled by the first that knows it. Empty: those found; OFF: none")
# Code for sm_86 runs on sm_89 too.
set(ATTN_CUDA_ARCHITECTURES 70 75 80 86 90 CACHE STRING "Compute capabilities to hold machine code for")

# Sets ATTN_CUDA_SERVED to the architectures that some nvcc knows, and of each ATTN_NVCC_<architecture>, the command, and
# ATTN_NVCC_OF_<architecture>, all commands that know it, each followed by its version.
function(attn_find_nvcc)
  set(commands ${ATTN_NVCC})
  if("${ATTN_NVCC}" STREQUAL "")
    find_program(attn_nvcc_path nvcc NO_CACHE)
    foreach(candidate /usr/bin/nvcc ${attn_nvcc_path} /usr/local/cuda/bin/nvcc)
      if(EXISTS ${candidate})
        list(APPEND commands ${candidate})
      endif()
    endforeach()
    list(REMOVE_DUPLICATES commands)
  elseif(NOT ATTN_NVCC)
    set(commands "")
  endif()
  set(unserved ${ATTN_CUDA_ARCHITECTURES})
  foreach(command IN LISTS commands)
    attn_nvcc_command(run ${command})
    execute_process(COMMAND ${run} --list-gpu-code OUTPUT_VARIABLE known ERROR_VARIABLE error RESULT_VARIABLE result)
    if(NOT result EQUAL 0)
      message(WARNING "${command} does not run: ${error}")
    endif()
    execute_process(COMMAND ${run} --version OUTPUT_VARIABLE version ERROR_QUIET)
    string(REGEX REPLACE ".*release ([0-9.]+).*" "\\1" version "${version}")
    foreach(architecture IN LISTS ATTN_CUDA_ARCHITECTURES)
      if(known MATCHES "sm_${architecture}(\n|$)")
        list(APPEND compilers_${architecture} ${command} ${version})
        set(ATTN_NVCC_OF_${architecture} ${compilers_${architecture}} PARENT_SCOPE)
        if(architecture IN_LIST unserved)
          set(ATTN_NVCC_${architecture} ${command} PARENT_SCOPE)
          list(APPEND served ${architecture})
          list(REMOVE_ITEM unserved ${architecture})
          message(STATUS "GPU code for sm_${architecture}: ${command}")
        endif()
      endif()
    endforeach()
  endforeach()
  if(unserved AND commands)
    attn_explain_unserved("${commands}" "${unserved}" "${served}")
  elseif(unserved)
    message(STATUS "No nvcc: the library will hold no GPU code (Debian: nvidia-cuda-toolkit)")
  endif()
  set(ATTN_CUDA_SERVED ${served} PARENT_SCOPE)
endfunction()

# Says which GPUs are left out, and why.
function(attn_explain_unserved commands unserved served)
  list(TRANSFORM unserved PREPEND "sm_")
  list(TRANSFORM served PREPEND "sm_")
  list(JOIN unserved ", " unserved_text)
  list(JOIN served ", " served_text)
  set(text "No code for ${unserved_text} (the build has: ${served_text}). None of these compilers knows it:")
  foreach(command IN LISTS commands)
    attn_nvcc_command(run ${command})
    execute_process(COMMAND ${run} --version OUTPUT_VARIABLE version ERROR_QUIET)
    string(REGEX MATCH "release [0-9.]+" version "${version}")
    string(APPEND text "\n  ${command} (${version})")
  endforeach()
  if("sm_70" IN_LIST unserved)
    string(APPEND text "\nCUDA 13 has dropped all GPUs before sm_75, the V100 (sm_70) among them; CUDA 11 and 12 know them. "
      "On such a GPU this build will answer UNSUPPORTED: newer code does not run on older GPUs. "
      "Debian's nvidia-cuda-toolkit is CUDA 11.8 or 12; it may be installed beside this one (tools/setup.sh), "
      "or ATTN_NVCC names another.")
  endif()
  message(WARNING "${text}")
endfunction()

# nvcc finds its parts through PATH, where another toolkit's may stand before them.
function(attn_nvcc_command variable command)
  if(IS_ABSOLUTE ${command})
    get_filename_component(directory ${command} DIRECTORY)
    set(${variable} ${CMAKE_COMMAND} -E env --modify PATH=path_list_prepend:${directory} -- ${command} PARENT_SCOPE)
  else()
    set(${variable} ${command} PARENT_SCOPE)
  endif()
endfunction()

# Debian's nvcc finds its headers in /usr/include, behind /usr/local/include, where those of another toolkit may lie
# (or links to them). /usr/include cannot be put first by -I, as a compiler ignores that for its own directories; so a
# folder of links to what is hidden goes first.
function(attn_unhide_headers)
  set(folder ${CMAKE_CURRENT_BINARY_DIR}/nvcc-include)
  if(EXISTS /usr/include/cuda_runtime.h AND EXISTS /usr/local/include/cuda_runtime.h)
    file(MAKE_DIRECTORY ${folder})
    file(GLOB hidden RELATIVE /usr/local/include /usr/local/include/*)
    foreach(name IN LISTS hidden)
      if(EXISTS /usr/include/${name})
        file(CREATE_LINK /usr/include/${name} ${folder}/${name} SYMBOLIC)
      endif()
    endforeach()
    set(ATTN_NVCC_INCLUDE -I ${folder} PARENT_SCOPE)
  endif()
endfunction()
attn_unhide_headers()

# attn_nvcc_since(VERSION [command version]...): sets nvcc and nvcc_version to the first that is no older; nvcc to "" if none is.
function(attn_nvcc_since least)
  set(nvcc "" PARENT_SCOPE)
  set(rest ${ARGN})
  while(rest)
    list(POP_FRONT rest command version)
    if(NOT version VERSION_LESS "${least}")
      set(nvcc ${command} PARENT_SCOPE)
      set(nvcc_version ${version} PARENT_SCOPE)
      return()
    endif()
  endwhile()
endfunction()

# attn_needs_ptx(VARIABLE ARCHITECTURE...): those whose PTX some GPU needs: machine code of 80 runs on 86 and not on 90.
function(attn_needs_ptx variable)
  set(rest ${ARGN})
  list(SORT rest COMPARE NATURAL) # 90 before 100
  set(needed "")
  while(rest)
    list(POP_FRONT rest architecture)
    math(EXPR later "${architecture} / 10 * 10 + 10")
    if(NOT rest)
      list(APPEND needed ${architecture})
    else()
      list(GET rest 0 next)
      if(next GREATER later)
        list(APPEND needed ${architecture})
      endif()
    endif()
  endwhile()
  set(${variable} ${needed} PARENT_SCOPE)
endfunction()

# attn_embed_kernels(TABLE SOURCE...): writes TABLE.c, which defines the attn_cuda_image TABLE[] with a fat binary of each
# kernel source (module) and architecture. ATTN_CUDA_ARCHITECTURES_<module>, where set, narrows the list.
# ATTN_CUDA_NVCC_<module>, where set, is the first version of nvcc that knows its instructions. A module that nothing here
# compiles gets an image that only a stand-in driver understands. TABLE_FATBINS lists what ATTN_NVCC_<architecture> compiles.
function(attn_embed_kernels table)
  set(data "")
  set(rows "")
  set(images "")
  set(fatbins "")
  foreach(source IN LISTS ARGN)
    get_filename_component(module ${source} NAME_WE)
    get_filename_component(source ${source} ABSOLUTE)
    set(architectures ${ATTN_CUDA_SERVED})
    if(DEFINED ATTN_CUDA_ARCHITECTURES_${module})
      set(architectures "")
      foreach(architecture IN LISTS ATTN_CUDA_ARCHITECTURES_${module})
        if(architecture IN_LIST ATTN_CUDA_SERVED)
          list(APPEND architectures ${architecture})
        endif()
      endforeach()
    endif()
    foreach(architecture IN LISTS architectures)
      attn_nvcc_since("${ATTN_CUDA_NVCC_${module}}" ${ATTN_NVCC_OF_${architecture}})
      if(NOT nvcc)
        message(STATUS "No ${module} for sm_${architecture}: it takes nvcc from ${ATTN_CUDA_NVCC_${module}} on")
        list(REMOVE_ITEM architectures ${architecture})
      endif()
    endforeach()
    attn_needs_ptx(need_ptx ${architectures})
    if(NOT architectures)
      set(architectures 0)
    endif()
    foreach(architecture IN LISTS architectures)
      set(toolkit 0)
      set(has_ptx false)
      set(symbol ${table}_${module}_${architecture})
      set(image ${CMAKE_CURRENT_BINARY_DIR}/${symbol}.fatbin)
      if(architecture EQUAL 0)
        file(GENERATE OUTPUT ${image} CONTENT "emulated ${module}")
      else()
        attn_nvcc_since("${ATTN_CUDA_NVCC_${module}}" ${ATTN_NVCC_OF_${architecture}})
        string(REGEX REPLACE "\\..*" "" toolkit ${nvcc_version})
        set(include "")
        if(nvcc STREQUAL "/usr/bin/nvcc")
          set(include ${ATTN_NVCC_INCLUDE})
        endif()
        if(nvcc STREQUAL ATTN_NVCC_${architecture})
          list(APPEND fatbins ${image})
        endif()
        set(ptx "")
        if(architecture IN_LIST need_ptx)
          set(has_ptx true)
          set(ptx -gencode arch=compute_${architecture},code=compute_${architecture})
        endif()
        attn_nvcc_command(nvcc ${nvcc})
        add_custom_command(OUTPUT ${image}
          COMMAND ${nvcc} -fatbin -Xfatbin -compress-all -std=c++17 -O3 -fmad=false -gencode arch=compute_${architecture},code=sm_${architecture}
            ${ptx} ${include} -I ${PROJECT_SOURCE_DIR}/include -I ${PROJECT_SOURCE_DIR}/src -I ${PROJECT_SOURCE_DIR}/src/common
            -MD -MF ${image}.d -MT ${image} -o ${image} ${source}
          DEPENDS ${source} DEPFILE ${image}.d VERBATIM COMMENT "nvcc ${module} for sm_${architecture}")
      endif()
      list(APPEND images ${image})
      # Behind the image a zero, for the image that is a text.
      string(APPEND data "extern const char ${symbol}[] __attribute__((visibility(\"hidden\")));\n"
        "__asm__(\".pushsection .rodata\\n.balign 16\\n.globl ${symbol}\\n.hidden ${symbol}\\n${symbol}:\\n\"\n"
        "        \".incbin \\\"${image}\\\"\\n.quad 0\\n.popsection\\n\");\n")
      string(APPEND rows "    {\"${module}\", ${architecture}, ${toolkit}, ${has_ptx}, ${symbol}},\n")
    endforeach()
  endforeach()
  file(CONFIGURE OUTPUT ${table}.c CONTENT "/* Written by CMake (cmake/attn-nvcc.cmake). */
#include \"cuda/device.h\"

@data@
extern const attn_cuda_image ${table}[];
const attn_cuda_image ${table}[] = {
@rows@    {NULL, 0, 0, false, NULL},
};
" @ONLY)
  # The assembler writes no dependency on what .incbin reads.
  set_source_files_properties(${CMAKE_CURRENT_BINARY_DIR}/${table}.c PROPERTIES OBJECT_DEPENDS "${images}")
  set(${table}_FATBINS ${fatbins} PARENT_SCOPE)
endfunction()
