// The public face of the floor: samples by ordinal.
#pragma once

#include <cstdint>
#include <optional>
#include <span>
#include <string>
#include <vector>

#include "lib/data/open_source.h"
#include "lib/data/sample_order.h"
#include "lib/data/token_source.h"

namespace quintet::data {

// One item of data.train or data.validation.
struct Entry {
  std::string path;  // a file, a folder or a glob
  std::optional<double> weight = std::nullopt;
};

// What is made of documents' ends.
struct Documents {
  std::optional<int32_t> end_token = std::nullopt;  // stands last in every document
  bool mask_attention = false;                      // attention and positions do not cross ends
  bool mask_end = false;                            // the prediction made from end_token does not count
};

struct DatasetOptions {
  std::string key = "data.train";   // the config key that errors name
  std::vector<Entry> entries = {};  // weights on all or on none; without them all entries are one source
  Reading reading = {};
  int64_t sequence_length = 0;  // S
  uint64_t seed = 0;
  bool shuffle = true;
  Documents documents = {};
};

// A source as the start table shows it and as errors name it.
struct Source {
  std::string name;
  TokenRange tokens;
  std::optional<double> weight = std::nullopt;
};

struct SourceSummary {
  std::string name;
  int64_t files = 0;
  int64_t tokens = 0;
  int64_t windows = 0;
  double share = 1;  // of the samples
};

// A copy shares the opened sources and has its own cursor: open once a process, hand every rank's thread a copy.
class Dataset {
 public:
  // Throws Error(data) for what is wrong with the files, a source too short for one window included, and Error(config)
  // for weights, formats and tokenizers.
  explicit Dataset(const DatasetOptions& options);
  // Of opened sources; entries and reading of the options are not looked at.
  Dataset(const DatasetOptions& options, std::vector<Source> sources);

  // The S + 1 tokens of a sample: S inputs and, one further, S targets. Any ordinal >= 0; they run through the epochs.
  // One thread at a time. `document_starts` gets the inputs at which a document starts, ascending, the first one left
  // out.
  void sample(int64_t ordinal, std::span<int32_t> tokens, std::vector<int64_t>* document_starts = nullptr);

  // Windows of all sources that are drawn from, N_val of a validation set.
  int64_t windows() const;
  int64_t sequence_length() const { return sequence_length_; }
  const Documents& documents() const { return documents_; }
  std::vector<SourceSummary> summary() const;

 private:
  std::vector<Source> sources_;
  int64_t sequence_length_;
  Documents documents_;
  SampleOrder order_;
};

// Where validation samples come from: a fraction of the training sources, entries of their own, or nothing.
struct ValidationOptions {
  double fraction = 0;  // in (0, 1); 0 = none
  std::vector<Entry> entries = {};
};

struct Split {
  Dataset training;
  std::optional<Dataset> validation;  // in plain order, so that evaluation reads ordinals 0, 1, ... the same each time
};

// With a fraction f, the last floor(f*T) tokens of each training source of T tokens are the validation source and
// training keeps the rest. Throws as Dataset does, and Error(config) for a fraction outside (0, 1).
Split open_split(const DatasetOptions& training, const ValidationOptions& validation);

}  // namespace quintet::data
