-- @include time, hash, numbers
-- Write down what a mix enqueues next, before it is enqueued: a process that dies is gone on from here.
--
-- @key mix = mix:{name}, rows = mix:{name}:rows, live = mix:{name}:live
-- @arg fence
-- @arg seq  of this batch, one more than that of the batch before
-- @arg state  after this batch
-- @arg pending  the groups of this batch
-- @arg sources  what is known of the sources, for people and the next start; '' = as before
-- @arg lease_s, ttl_s
-- @arg prints[source, print]  fingerprints of the rows of sources that have changed
-- Returns ok | lost (another process has the mix) | behind (the batch before is not here: Redis has lost
-- its last moments, and the caller goes on from what it holds).
local refused = refused_number({{'number of the batch', seq, 1, EXACT, true},
  {'TTL of the mix, s', ttl_s, 1, 1e9, true}, {'lease, s', lease_s, 0.01, 1e6}})
if refused then return refused end
local known = hash(mix, 'fence', 'seq')
if known.fence ~= fence then return 'lost' end
local last, this = tonumber(known.seq or '') or 0, tonumber(seq)
if last == this then return 'ok' end  -- the same call again: nobody else has this fence
if last ~= this - 1 then return 'behind' end
redis.call('HSET', mix, 'seq', seq, 'state', state, 'pending', pending, 'until', stamp(now + tonumber(lease_s)))
if sources ~= '' then redis.call('HSET', mix, 'sources', sources) end
for _, each in ipairs(prints) do redis.call('HSET', rows, each.source, each.print) end
for _, key in ipairs({mix, live, rows}) do redis.call('EXPIRE', key, ttl_s) end
return 'ok'
