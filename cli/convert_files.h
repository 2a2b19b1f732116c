// Checkpoints and per-rank safetensors as the two ends of a move: parameters by name, value transforms run on the way.
#pragma once
#include <map>
#include <memory>
#include <string>
#include <vector>

#include "cli/mover.h"
#include "files/files.h"

namespace refit::cli {

// Parameters of every rank, mapped. Those that a side stores through a value transform are undone into copies.
class ParameterMemory final : public SourceMemory {
 public:
  // A checkpoint as the one rank of an `hf` layout.
  static Result<ParameterMemory> of_checkpoint(const model::Layout& layout, files::Checkpoint checkpoint,
                                               const plan::Options& options);
  // rank<R>.safetensors, or its shards, of `directory`. Errors: kMismatch listing the parameters that a rank's files
  // lack and those that the layout does not know; kInvalid for a transform that cannot be undone exactly.
  static Result<ParameterMemory> of_ranks(const model::Layout& layout, const std::string& directory,
                                          const plan::Options& options);
  const std::byte* at(Rank rank, std::uint32_t buffer, std::int64_t offset) const override;

 private:
  struct Span {
    std::int64_t offset = 0;  // in the rank's buffer
    const std::byte* data = nullptr;
  };
  Status add_rank(const model::Layout& layout, Rank rank, const std::map<std::string, files::TensorRef>& tensors,
                  const std::string& where, const plan::Options& options);

  std::vector<files::Checkpoint> files_;
  std::vector<std::vector<std::byte>> undone_;
  std::vector<std::vector<Span>> ranks_;  // by rank, by offset
};

// Per rank safetensors with the side's own names, and layout.json; for `hf` a checkpoint. Shards where a file would
// pass `shard_bytes`. `config_json` goes along.
class ParameterFiles final : public TargetFiles {
 public:
  ParameterFiles(const model::Layout& layout, std::string config_json, std::int64_t shard_bytes,
                 const plan::Options& options)
      : layout_(layout), config_(std::move(config_json)), shard_bytes_(shard_bytes), options_(options) {}
  Result<std::unique_ptr<RankFiles>> open(const model::RankLayout& held, const std::string& directory) override;
  Status finish(const std::string& directory) override;

 private:
  Status write_index(const std::string& directory) const;

  const model::Layout& layout_;
  std::string config_;
  std::int64_t shard_bytes_;
  const plan::Options& options_;
  std::vector<model::RankLayout> lying_;      // where the files put it
  std::map<std::string, std::string> index_;  // tensor -> file, of a checkpoint in shards
};

// What `refit convert` does, with its default sizes.
Status convert_directory(const std::string& model, const std::string& from, const std::string& to,
                         const std::string& out);

}  // namespace refit::cli
