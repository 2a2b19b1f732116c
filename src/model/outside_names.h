// Names as they come from outside: what wrappers put before or into them is taken off, and what is left over, or
// missing, is told together. Live modules, layout files and checkpoints all go through here.
#pragma once
#include <map>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "core/core.h"
#include "model/layout.h"

namespace refit::model {

// Without the parts `_orig_mod` (torch.compile), `_fsdp_wrapped_module` (FSDP1) and `base_layer` (adapters), and
// without leading `module` (DDP, Megatron). A name of nothing else stays as it is.
std::string plain_name(std::string_view name);

// The tensors under their plain names, sorted. Errors: kInvalid when two become one.
Result<Catalogue> plain_names(Catalogue outside);

// Each of the names that are known, with the name from outside whose plain form it is. Errors: kInvalid when two names
// from outside are one without their wrappers; kMismatch listing known names that are missing and names from outside
// that are left over, both, under `what`.
Result<std::map<std::string, std::string, std::less<>>> match_names(std::span<const std::string> outside,
                                                                    std::span<const std::string> known,
                                                                    std::string_view what);

// "a, b and 3 more".
std::string names_text(const std::vector<std::string>& names);

}  // namespace refit::model
