/* SPDX-License-Identifier: Apache-2.0 */
#include "banks.h"

#include <stdio.h>

#include <algorithm>
#include <map>
#include <mutex>
#include <tuple>

#include "emulator.h"
#include "report.h"

namespace emulator
{

enum : unsigned { BANKS = 32, BANK_BYTES = 4 };

struct SharedAccess {
    const void *code;
    unsigned turn; /* how often the lane had been here since the warp met */
    uint32_t offset;
    uint8_t lane, bytes;
    bool is_write;
};

struct Banks {
    std::vector<SharedAccess> log[MAX_WARPS];
    std::map<std::pair<unsigned, const void *>, unsigned> turns; /* of (thread, code) */
};

typedef std::tuple<const void *, int, bool> Instruction; /* code, bytes, is_write */
struct Sum {
    uint64_t instructions, wavefronts, ideal;
};

static std::mutex mutex;
static std::map<Instruction, Sum> sums;

Banks *banks_of_this_thread()
{
    static thread_local Banks *mine;
    if (mine == nullptr) mine = new Banks;
    for (unsigned i = 0; i < MAX_WARPS; i++) mine->log[i].clear(); /* of a block that was given up */
    mine->turns.clear();
    return mine;
}

void banks_note(Worker &w, const void *code, size_t offset, size_t bytes, bool is_write)
{
    const Fiber *me = self;
    const unsigned turn = w.banks->turns[{me->index, code}]++;
    w.banks->log[me->warp->index].push_back(
        {code, turn, uint32_t(offset), uint8_t(me->lane), uint8_t(bytes), is_write});
}

/* One instruction of a warp: 128 bytes a wavefront, so 8-byte accesses go by half warps and 16-byte ones by quarters;
 * of each, the bank with most distinct words decides. */
static void add_instruction(const SharedAccess *access, const SharedAccess *end)
{
    const unsigned lanes = BANKS * BANK_BYTES / std::max<unsigned>(access->bytes, BANK_BYTES);
    Sum &sum = sums[{access->code, access->bytes, access->is_write}];
    sum.instructions++;
    while (access != end) {
        const unsigned part = access->lane / lanes;
        std::vector<uint32_t> words[BANKS];
        for (; access != end && access->lane / lanes == part; access++)
            for (uint32_t word = access->offset / BANK_BYTES; word * BANK_BYTES < access->offset + access->bytes;
                 word++)
                words[word % BANKS].push_back(word);
        size_t most = 1;
        for (auto &in_bank : words) {
            std::sort(in_bank.begin(), in_bank.end());
            most = std::max(most, size_t(std::unique(in_bank.begin(), in_bank.end()) - in_bank.begin()));
        }
        sum.wavefronts += most;
        sum.ideal++;
    }
}

void banks_finish_step(Worker &w, unsigned warp)
{
    std::vector<SharedAccess> &log = w.banks->log[warp];
    const auto key = [](const SharedAccess &a) { return std::make_tuple(a.code, a.turn, a.lane); };
    std::sort(log.begin(), log.end(), [&](const SharedAccess &a, const SharedAccess &b) { return key(a) < key(b); });
    const std::lock_guard<std::mutex> lock(mutex);
    for (size_t first = 0, next; first < log.size(); first = next) {
        for (next = first; next < log.size() && log[next].code == log[first].code && log[next].turn == log[first].turn;)
            next++;
        add_instruction(&log[first], &log[first] + (next - first));
    }
    log.clear();
    auto &turns = w.banks->turns;
    turns.erase(turns.lower_bound({warp * LANES, nullptr}), turns.lower_bound({(warp + 1) * LANES, nullptr}));
}

void banks_finish_block(Worker &w)
{
    for (unsigned i = 0; i < w.warps; i++) banks_finish_step(w, i);
}

} // namespace emulator

extern "C" __attribute__((visibility("default"))) size_t emulator_banks(struct emulator_bank_line *lines,
                                                                        size_t capacity)
{
    using namespace emulator;
    const std::lock_guard<std::mutex> lock(mutex);
    std::map<std::tuple<std::string, int, bool>, Sum> by_line; /* unrolled loops have many instructions a line */
    for (const auto &entry : sums) {
        const auto &[code, bytes, is_write] = entry.first;
        Sum &sum = by_line[{source_line(code), bytes, is_write}];
        sum.instructions += entry.second.instructions;
        sum.wavefronts += entry.second.wavefronts;
        sum.ideal += entry.second.ideal;
    }
    sums.clear();
    size_t count = 0;
    for (const auto &entry : by_line) {
        const auto &[place, bytes, is_write] = entry.first;
        if (count < capacity) {
            emulator_bank_line &line = lines[count];
            snprintf(line.place, sizeof line.place, "%s", place.c_str());
            line.bytes = bytes;
            line.is_write = is_write;
            line.instructions = entry.second.instructions;
            line.wavefronts = entry.second.wavefronts;
            line.ideal = entry.second.ideal;
        }
        count++;
    }
    return count;
}
