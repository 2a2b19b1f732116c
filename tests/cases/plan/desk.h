// A workplace for field cases: layouts written down by hand, raw files made from a reference, one reshard, one look.
#pragma once
#include <gtest/gtest.h>
#include <stdlib.h>

#include <filesystem>
#include <fstream>
#include <map>

#include "cli/reshard_run.h"
#include "unit/plan/reference.h"

namespace refit::testing {

using LayoutPtr = std::shared_ptr<const model::Layout>;

// Layouts of one catalogue. Each rank has one buffer, and holdings are appended to it contiguously unless told
// otherwise.
class Draft {
 public:
  explicit Draft(std::vector<model::LogicalTensor> tensors,
                 std::vector<std::pair<std::string, std::string>> tied = {}) {
    std::sort(tensors.begin(), tensors.end(), [](const auto& a, const auto& b) { return a.name < b.name; });
    catalogue_ = {std::move(tensors), std::move(tied)};
  }
  model::Holding& add(std::uint32_t rank, const std::string& tensor, Box box, View view = {}) {
    while (ranks_.size() <= rank) {
      ranks_.push_back({.rank = Rank(static_cast<std::uint32_t>(ranks_.size())),
                        .host = {},
                        .buffers = {},
                        .holdings = {},
                        .parameters = {}});
      ranks_.back().buffers.push_back({"m", 0, 0xEE, ""});
    }
    model::RankLayout& r = ranks_[rank];
    const auto id = catalogue_.find(tensor);
    const model::LogicalTensor& t = catalogue_.tensors.at(static_cast<std::size_t>(id));
    const std::int64_t item = item_size(t.dtype), at = ceil_div(r.buffers[0].bytes, item) * item;
    Dims strides(box.size());
    std::int64_t span = item;
    for (std::size_t k = box.size(); k-- > 0;) {
      strides[k] = span;
      span *= box[k].size();
    }
    if (view.radices.empty()) view = View::trivial(t.shape);
    r.holdings.push_back({.tensor = TensorId(static_cast<std::uint32_t>(id)),
                          .buffer = 0,
                          .view = std::move(view),
                          .box = std::move(box),
                          .offset = at,
                          .strides = std::move(strides),
                          .dtype = t.dtype});
    r.buffers[0].bytes = at + span;
    return r.holdings.back();
  }
  model::RankLayout& rank(std::uint32_t r) { return ranks_.at(r); }
  LayoutPtr done(std::int64_t instances = 1) {
    auto out = model::explicit_layout(catalogue_, ranks_, instances);
    EXPECT_TRUE(out.ok()) << out.error().to_string();
    return out.ok() ? *out : nullptr;
  }

 private:
  model::Catalogue catalogue_;
  std::vector<model::RankLayout> ranks_;
};

class Desk : public ::testing::Test {
 protected:
  void SetUp() override {
    char name[] = "/tmp/refit-case-XXXXXX";
    dir_ = ::mkdtemp(name);
    std::filesystem::create_directory(dir_ + "/data");
    options_.files = true;
  }
  void TearDown() override { std::filesystem::remove_all(dir_); }

  // A different value for each (tensor, index); tied names share theirs.
  static std::uint64_t value(const model::Layout& layout, std::uint32_t tensor, const Dims& index) {
    std::string name = layout.catalogue().tensors[tensor].name;
    for (const auto& [a, b] : layout.catalogue().tied)
      if (name == b) name = a;
    std::uint64_t v =
        std::hash<std::string>{}(name)*31 +
        0x9E3779B97F4A7C15ull * static_cast<std::uint64_t>(linear(layout.catalogue().tensors[tensor].shape, index) + 1);
    return v ^ v >> 29;
  }
  static Memory reference(const model::Layout& layout, std::uint32_t rank) {
    return fill(layout, Rank(rank), [&](std::uint32_t t, const Dims& index) { return value(layout, t, index); });
  }
  std::string data(std::uint32_t rank) const { return dir_ + "/data/rank" + std::to_string(rank) + ".m.bin"; }
  void write_sources(const model::Layout& source) {
    for (std::uint32_t r = 0; r < source.world(); ++r) write(data(r), reference(source, r)[0]);
  }
  static void write(const std::string& path, const std::vector<std::uint8_t>& bytes) {
    std::ofstream(path, std::ios::binary)
        .write(reinterpret_cast<const char*>(bytes.data()), static_cast<std::streamsize>(bytes.size()));
  }
  static std::vector<std::uint8_t> read(const std::string& path) {
    std::ifstream in(path, std::ios::binary);
    return {std::istreambuf_iterator<char>(in), {}};
  }
  Result<cli::ReshardReport> move(const LayoutPtr& source, const LayoutPtr& target) {
    std::filesystem::remove_all(dir_ + "/out");
    return cli::reshard(*source, dir_ + "/data", *target, dir_ + "/out", options_);
  }
  std::vector<std::uint8_t> result(std::uint32_t rank) const {
    return read(dir_ + "/out/rank" + std::to_string(rank) + ".m.bin");
  }
  // Reshards reference data and compares every byte of every rank.
  void expect_moved(const LayoutPtr& source, const LayoutPtr& target) {
    ASSERT_TRUE(source && target);
    write_sources(*source);
    const auto report = move(source, target);
    ASSERT_TRUE(report.ok()) << report.error().to_string();
    for (std::uint32_t r = 0; r < target->world(); ++r)
      EXPECT_EQ(result(r), reference(*target, r)[0]) << "target rank " << r;
  }
  // The error of a refused reshard; nothing may have been written.
  std::string refusal(const LayoutPtr& source, const LayoutPtr& target) {
    const auto report = move(source, target);
    EXPECT_FALSE(report.ok());
    EXPECT_FALSE(std::filesystem::exists(dir_ + "/out"));
    return report.ok() ? "" : report.error().to_string();
  }

  std::string dir_;
  plan::Options options_;
};

}  // namespace refit::testing
