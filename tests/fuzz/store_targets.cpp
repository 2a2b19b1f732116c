// Objects of a store: whoever may write there may write anything.
#include "fuzz/fuzz.h"
#include "store/follow_state.h"
#include "store/format.h"

namespace refit::fuzz {
namespace {

const std::string kStore = REFIT_GOLDEN "/store/v1";

Bytes sealed(View in) {
  Bytes bytes(in.begin(), in.end());
  if (bytes.size() >= 16) put_canonical(bytes, bytes.size() - 16, hash128(View(bytes).first(bytes.size() - 16)));
  return bytes;
}

bool model(View in) {
  const auto read = store::read_model(in);
  if (!read.ok()) return false;
  const auto grid = store::Grid::make(*read, store::kMaxChunkBytes);
  if (grid.ok()) REFIT_FUZZ_CHECK(grid->tensors() == read->tensors.size());
  return true;
}

bool store_manifest(View in) {
  const auto read = store::read_manifest(in);
  if (!read.ok()) return false;
  if (!read->signer) {
    const auto again = store::write_manifest(*read, nullptr);
    REFIT_FUZZ_CHECK(std::equal(again.begin(), again.end(), in.begin(), in.end()));
  }
  return true;
}

template <auto Read, auto Write>
bool small(View in) {
  const Bytes bytes = sealed(in);
  const auto read = Read(bytes);
  if (!read.ok()) return false;
  const auto again = Write(*read);
  REFIT_FUZZ_CHECK(std::equal(again.begin(), again.end(), bytes.begin(), bytes.end()));
  return true;
}

std::vector<Bytes> store_manifests() {
  std::vector<Bytes> out;
  for (const char* version : {"00000000000000000001-ca51bc6097af3a6d", "00000000000000000002-e913b4884f7402ae"})
    out.push_back(file(kStore + "/versions/" + version + "/manifest"));
  return out;
}

}  // namespace

std::vector<Target> store_targets() {
  return {
      {"store_model", model, [] { return files(kStore + "/models", ""); }},
      {"store_manifest", store_manifest, store_manifests},
      {"store_marker", small<store::read_marker, store::write_marker>, [] { return files(kStore + "/committed", ""); }},
      {"store_root", small<store::read_root, store::write_root>,
       [] { return std::vector<Bytes>{file(kStore + "/root")}; }},
      {"store_lease", small<store::read_lease, store::write_lease>, [] { return files(kStore + "/leases", ""); }},
      {"store_mark", small<store::read_mark, store::write_mark>, [] {
         store::FollowMark mark;
         mark.lineage = {1, 2};
         mark.number = 7;
         return std::vector<Bytes>{Bytes(store::write_mark(mark))};
       }}};
}

}  // namespace refit::fuzz
