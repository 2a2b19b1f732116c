// What a plan costs on given links: a lower bound, an expected time, the busiest port. Pure.
#pragma once
#include <cstdint>
#include <map>
#include <string>
#include <vector>

#include "core/core.h"

namespace refit::plan {

struct World;

// Rates in bytes a second, of one direction; a port is full duplex.
struct LinkTable {
  std::int64_t ranks_per_host = 1;  // of sides whose layout names no hosts: source ranks fill hosts, target ranks others
  double nic_rank = 0;              // a network card for each rank; 0: none
  double nic_host = 0;              // all cards of a host together; 0: its ranks' cards
  double local = 0;                 // between ranks of one host (NVLink, memory), a port a rank
  std::map<std::string, double> nic_of_host;  // hosts that differ, by name
  double efficiency = 0.9;                    // of a rate that bulk transfers reach
  double latency_s = 0;                       // of one bucket
};
// Errors: kInvalid naming the key.
Status check_links(const LinkTable& links);

struct Port {
  std::string name;  // "source:3", "host source-host:1"
  bool out = false;
  bool local = false;
  std::int64_t bytes = 0;
  double rate = 0, seconds = 0;
};

struct Cost {
  // No order of the plan's direct sends is quicker: the longest that one port is busy at its full rate.
  double bound_s = 0;
  double expected_s = 0;    // bound ÷ efficiency, and the latencies of the buckets behind each other at one rank
  std::vector<Port> ports;  // busiest first
  std::int64_t bytes_network = 0, bytes_local = 0;
};
Result<Cost> cost_of(const World& world, const LinkTable& links);

}  // namespace refit::plan
