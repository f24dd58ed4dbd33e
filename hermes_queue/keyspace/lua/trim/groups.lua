-- The progress of consumer groups in the stream.

-- Redis answers with a flat list: name, value, name, value ...
local function named(flat)
  local found = {}
  for i = 1, #flat, 2 do found[flat[i]] = flat[i + 1] end
  return found
end

local function before(a, b)  -- stream ids
  local am, as = string.match(a, '^(%d+)-(%d+)$')
  local bm, bs = string.match(b, '^(%d+)-(%d+)$')
  if am ~= bm then return tonumber(am) < tonumber(bm) end
  return tonumber(as) < tonumber(bs)
end

-- Whether the group holds entries back (it is durable, or a consumer of it has read recently), and
-- whether anybody has ever read in it.
local function counts(name)
  if redis.call('HGET', prefix .. 'consumer-group:' .. name, 'durable') ~= '0' then return true, true end
  local consumers = redis.call('XINFO', 'CONSUMERS', results, name)
  local active = false
  for _, consumer in ipairs(consumers) do
    if named(consumer)['idle'] < 1000 * tonumber(abandoned_after_s) then active = true end
  end
  return active, #consumers > 0
end

-- Per counted group the last entry read, and its oldest unacknowledged one; names of others that have read.
local function read_by_all()
  local reads, holds, abandoned = {}, {}, {}
  for _, flat in ipairs(redis.call('XINFO', 'GROUPS', results)) do
    local group = named(flat)
    local counted, has_read = counts(group['name'])
    if counted then
      reads[#reads + 1] = group['last-delivered-id']
      local pending = redis.call('XPENDING', results, group['name'])
      if pending[1] > 0 then holds[#holds + 1] = pending[2] end
    elseif has_read then  -- before Redis 7.2 a consumer does not exist before its first entry
      abandoned[#abandoned + 1] = group['name']
    end
  end
  return reads, holds, abandoned
end
