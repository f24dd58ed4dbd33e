-- @include time
-- Make a dead worker's sandbox another worker's.
--
-- @key sandboxes  ids by the end of their lease
-- @key record = sandbox:{id}, suspects = reaper:{backend}:suspects
-- @arg id
-- @arg had_it, wants_it  the worker that had it, and the one that claims it
-- @arg facts  its new ones (JSON)
-- @arg lease_s
-- @arg record_ttl_s  for which the record outlives the lease
-- Returns 1 when it is the caller's now, else 0: it is a third one's, or condemned or gone.
-- That the worker that had it is dead is for the caller to know. Safe to repeat.
local raw = redis.call('GET', record)
if not raw then return 0 end
local worker = (cjson.decode(raw)['labels'] or {})['worker']
if worker ~= had_it and worker ~= wants_it then return 0 end
redis.call('ZADD', sandboxes, stamp(now + tonumber(lease_s)), id)
redis.call('EXPIRE', sandboxes, record_ttl_s)
redis.call('SET', record, facts, 'EX', record_ttl_s)
redis.call('ZREM', suspects, id)
return 1
