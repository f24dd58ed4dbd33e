-- @include time, numbers, tasks
-- Add what workers have seen of tasks, or take over what another deployment knows; forget the oldest.
--
-- @key tasks  `{env}:{sha256}` of all remembered tasks by the time of their last use
-- @arg prefix
-- @arg ttl_s  after which a task that nobody runs is forgotten
-- @arg most  tasks; of more, those that were used least lately are forgotten
-- @arg mode  seen: a worker's sums of now, bounded; add: sums of any time; newer: a row replaces what is
--      known if that is older
-- @arg rows[member, news]  news: JSON as in include/tasks.lua; a worker's has neither `first` nor `last`
-- Returns the number of rows that were taken. Repeating a call adds twice, but for `newer`.
local FORGOTTEN_AT_ONCE = 1000
local refused = refused_number({{'TTL of tasks, s', ttl_s, 1, 1e9, true}, {'most tasks', most, 0, 1e9, true}})
if refused then return refused end
if redis.call('TYPE', tasks).ok ~= 'zset' then redis.call('DEL', tasks) end

local taken, used, at = 0, {}, stamp(now)
local function merge(row)
  local readable, news = pcall(cjson.decode, row.news)
  if not readable or type(news) ~= 'table' then return end
  news.last = a_number(news.last) > 0 and math.min(a_number(news.last), now) or now
  local known = stored_task(row.member)
  if mode ~= 'newer' or math.floor(news.last) > a_number(known.last) then
    remember_task(row.member, mode == 'newer' and {} or known, news, ttl_s)
    taken = taken + 1
  end
end
for _, row in ipairs(rows) do
  -- Most tasks of a first run are new: what a worker has added up is what is known of them then.
  local first = string.format('{"first":%d,"last":%d,', now, now) .. string.sub(row.news, 2)
  local is_new = mode == 'seen' and redis.call('SET', prefix .. 'task:' .. row.member, first, 'NX', 'EX', ttl_s)
  if is_new then
    used[#used + 1], used[#used + 2] = at, row.member
    taken = taken + 1
  else
    merge(row)
  end
end
if used[1] then redis.call('ZADD', tasks, unpack(used)) end
local surplus = math.min(redis.call('ZCARD', tasks) - tonumber(most), FORGOTTEN_AT_ONCE)
local gone = surplus > 0 and redis.call('ZRANGE', tasks, 0, surplus - 1)
  or redis.call('ZRANGEBYSCORE', tasks, '-inf', stamp(now - tonumber(ttl_s)), 'LIMIT', 0, FORGOTTEN_AT_ONCE)
for _, member in ipairs(gone) do
  redis.call('ZREM', tasks, member)
  redis.call('DEL', prefix .. 'task:' .. member)
end
redis.call('EXPIRE', tasks, ttl_s)
return taken
