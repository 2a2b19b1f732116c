# Writes OUTPUT, which says of which commit the sources in SOURCE are; touched only when that changed, so that nothing is
# compiled anew otherwise. "-dirty": with changes that are not committed.
execute_process(COMMAND git -C "${SOURCE}" describe --always --dirty --abbrev=12 --exclude=*
  OUTPUT_VARIABLE commit OUTPUT_STRIP_TRAILING_WHITESPACE ERROR_QUIET RESULT_VARIABLE failed)
if(failed)
  set(commit "unknown (built outside of a git checkout)")
endif()
set(text "namespace refit::cli {\nextern const char* const kCommit;\nconst char* const kCommit = \"${commit}\";\n}  // namespace refit::cli\n")
set(before "")
if(EXISTS "${OUTPUT}")
  file(READ "${OUTPUT}" before)
endif()
if(NOT text STREQUAL before)
  file(WRITE "${OUTPUT}" "${text}")
endif()
