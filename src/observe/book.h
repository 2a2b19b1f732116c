// Book: the values of one process' metrics, and their text in Prometheus' format.
#pragma once
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "observe/table.h"

namespace refit::observe {

// In the order of the table's label names.
using LabelValues = std::vector<std::string>;

// *thread-safe*. A wrong kind of metric or number of labels is our own mistake.
class Book {
 public:
  Book();
  ~Book();
  Book(const Book&) = delete;
  Book& operator=(const Book&) = delete;

  void set(Metric gauge, const LabelValues& labels, double value);
  void add(Metric counter, const LabelValues& labels, double amount = 1);
  // A counter whose total somebody else keeps; a total below the former one began anew and is added whole.
  void raise(Metric counter, const LabelValues& labels, double total);
  void observe(Metric histogram, const LabelValues& labels, double seconds);
  std::string text() const;

 private:
  struct Impl;
  std::unique_ptr<Impl> impl_;
};

}  // namespace refit::observe
