/* SPDX-License-Identifier: Apache-2.0 */
#include "pool.h"

#include <condition_variable>
#include <deque>
#include <mutex>
#include <thread>

#include "settings.h"

namespace emulator
{

/* Never destroyed: workers use it until the process ends. */
struct Pool {
    std::mutex mutex;
    std::condition_variable work, done;
    std::deque<Launch *> launches; /* with blocks to hand out; the next block comes from the first */
    unsigned workers = 0;
};

static Pool &pool()
{
    static Pool &only = *new Pool;
    return only;
}

/* Takes a block and moves its launch to the end of the line, so that launches share the workers. */
static Launch *take(Pool &p, unsigned *block)
{
    Launch *launch = p.launches.front();
    p.launches.pop_front();
    *block = launch->next_block++;
    if (launch->next_block < launch->blocks) p.launches.push_back(launch);
    return launch;
}

/* After a mistake the rest of the blocks is not run. */
static void drop_rest(Pool &p, Launch *launch)
{
    for (auto l = p.launches.begin(); l != p.launches.end(); ++l)
        if (*l == launch) {
            p.launches.erase(l);
            break;
        }
    launch->unfinished -= launch->blocks - launch->next_block;
    launch->next_block = launch->blocks;
}

static void work(unsigned index)
{
    Pool &p = pool();
    catch_faults();
    Worker *me = new Worker;
    std::unique_lock<std::mutex> lock(p.mutex);
    for (;;) {
        p.work.wait(lock, [&] { return !p.launches.empty() && index < worker_threads(); });
        unsigned block;
        Launch *launch = take(p, &block);
        lock.unlock();
        me->run_block(*launch, block);
        lock.lock();
        add_counters(launch->counters, me->counters);
        me->counters = {};
        if (launch->failed) drop_rest(p, launch);
        if (--launch->unfinished == 0) p.done.notify_all();
    }
}

void pool_run(Launch &launch)
{
    Pool &p = pool();
    std::unique_lock<std::mutex> lock(p.mutex);
    for (; p.workers < worker_threads(); p.workers++) std::thread(work, p.workers).detach();
    launch.unfinished = launch.blocks;
    p.launches.push_back(&launch);
    p.work.notify_all();
    p.done.wait(lock, [&] { return launch.unfinished == 0; });
}

} // namespace emulator
