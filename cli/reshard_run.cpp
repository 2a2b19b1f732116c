#include "cli/reshard_run.h"

#include <cstring>

#include "files/files.h"

namespace refit::cli {
namespace {

std::string file_name(Rank rank, const std::string& buffer) {
  return "rank" + std::to_string(rank.value) + "." + buffer + ".bin";
}

// The source's buffers, mapped.
class SourceFiles final : public SourceMemory {
 public:
  static Result<SourceFiles> open(const model::Layout& layout, const std::string& directory) {
    SourceFiles out;
    for (std::int64_t r = 0; r < layout.world(); ++r) {
      const Rank rank(static_cast<std::uint32_t>(r));
      REFIT_ASSIGN(const model::RankLayout held, layout.expand(rank));
      auto& buffers = out.ranks_.emplace_back();
      for (const model::BufferSpec& b : held.buffers) {
        const std::string path = directory + "/" + file_name(rank, b.name);
        REFIT_ASSIGN(files::MappedFile file, files::MappedFile::open(path));
        const auto size = static_cast<std::int64_t>(file.bytes().size());
        if (size != b.bytes)
          return Error(Code::kCorrupt, path + " has " + std::to_string(size) + " bytes, buffer '" + b.name +
                                           "' of source rank " + std::to_string(r) + " has " + std::to_string(b.bytes))
              .amounts(b.bytes, size);
        buffers.push_back(std::move(file));
      }
    }
    return out;
  }
  const std::byte* at(Rank rank, std::uint32_t buffer, std::int64_t offset) const override {
    return ranks_[rank.value][buffer].bytes().data() + offset;
  }

 private:
  std::vector<std::vector<files::MappedFile>> ranks_;
};

// One rank's raw buffers.
class RawRank final : public RankFiles {
 public:
  static Result<std::unique_ptr<RankFiles>> create(const model::RankLayout& held, const std::string& directory) {
    auto out = std::make_unique<RawRank>();
    for (const model::BufferSpec& b : held.buffers) {
      REFIT_ASSIGN(files::FileWriter w,
                   files::FileWriter::create(directory + "/" + file_name(held.rank, b.name), b.bytes));
      if (b.fill != 0 && b.bytes > 0) std::memset(w.bytes().data(), b.fill, w.bytes().size());
      out->writers_.push_back(std::move(w));
    }
    return std::unique_ptr<RankFiles>(std::move(out));
  }
  std::byte* at(std::uint32_t buffer, std::int64_t offset) override { return writers_[buffer].bytes().data() + offset; }
  std::int64_t bytes() const override {
    std::int64_t sum = 0;
    for (const files::FileWriter& w : writers_) sum += static_cast<std::int64_t>(w.bytes().size());
    return sum;
  }
  Status commit() override {
    for (files::FileWriter& w : writers_) REFIT_TRY(w.commit());
    return {};
  }

 private:
  std::vector<files::FileWriter> writers_;
};

class RawFiles final : public TargetFiles {
 public:
  Result<std::unique_ptr<RankFiles>> open(const model::RankLayout& held, const std::string& directory) override {
    return RawRank::create(held, directory);
  }
};

}  // namespace

Result<ReshardReport> reshard(const model::Layout& source, const std::string& source_dir, const model::Layout& target,
                              const std::string& out, const plan::Options& options) {
  REFIT_TRY(check_out(out));
  REFIT_ASSIGN(const SourceFiles memory, SourceFiles::open(source, source_dir));
  RawFiles files;
  return move_files(source, memory, target, files, out, options);
}

}  // namespace refit::cli
