#include "observe/book.h"

#include <prometheus/counter.h>
#include <prometheus/gauge.h>
#include <prometheus/histogram.h>
#include <prometheus/registry.h>
#include <prometheus/text_serializer.h>

#include <array>
#include <map>
#include <mutex>

#include "core/core.h"

namespace refit::observe {
namespace {

prometheus::Labels labels_of(const Description& d, const LabelValues& values) {
  prometheus::Labels out;
  std::string_view names = d.labels;
  for (const std::string& value : values) {
    const std::size_t comma = names.find(',');
    out.emplace(std::string(names.substr(0, comma)), value);
    names = comma == std::string_view::npos ? std::string_view{} : names.substr(comma + 1);
  }
  return out;
}

}  // namespace

struct Book::Impl {
  prometheus::Registry registry;
  // By metric; of the table's three kinds one is set.
  std::array<prometheus::Family<prometheus::Counter>*, kMetricCount> counters{};
  std::array<prometheus::Family<prometheus::Gauge>*, kMetricCount> gauges{};
  std::array<prometheus::Family<prometheus::Histogram>*, kMetricCount> histograms{};
  std::mutex mutex;  // totals
  std::map<std::pair<Metric, LabelValues>, double> totals;
};

Book::Book() : impl_(std::make_unique<Impl>()) {
  for (const Description& d : table()) {
    const auto i = static_cast<std::size_t>(d.metric);
    const std::string name(d.name), help(d.help);
    if (d.type == Type::kCounter)
      impl_->counters[i] = &prometheus::BuildCounter().Name(name).Help(help).Register(impl_->registry);
    else if (d.type == Type::kGauge)
      impl_->gauges[i] = &prometheus::BuildGauge().Name(name).Help(help).Register(impl_->registry);
    else
      impl_->histograms[i] = &prometheus::BuildHistogram().Name(name).Help(help).Register(impl_->registry);
  }
}
Book::~Book() = default;

void Book::set(Metric gauge, const LabelValues& labels, double value) {
  impl_->gauges[static_cast<std::size_t>(gauge)]->Add(labels_of(describe(gauge), labels)).Set(value);
}
void Book::add(Metric counter, const LabelValues& labels, double amount) {
  impl_->counters[static_cast<std::size_t>(counter)]->Add(labels_of(describe(counter), labels)).Increment(amount);
}
void Book::raise(Metric counter, const LabelValues& labels, double total) {
  const std::lock_guard lock(impl_->mutex);
  double& last = impl_->totals[{counter, labels}];
  add(counter, labels, total >= last ? total - last : total);
  last = total;
}
void Book::observe(Metric histogram, const LabelValues& labels, double seconds) {
  const auto bounds = second_bounds();
  impl_->histograms[static_cast<std::size_t>(histogram)]
      ->Add(labels_of(describe(histogram), labels),
            prometheus::Histogram::BucketBoundaries(bounds.begin(), bounds.end()))
      .Observe(seconds);
}
std::string Book::text() const { return prometheus::TextSerializer().Serialize(impl_->registry.Collect()); }

}  // namespace refit::observe
