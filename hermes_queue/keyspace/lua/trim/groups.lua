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

-- The conditions of a group, as hermes_queue/results/filters.py stores them; nil = it takes everything.
local function filter_of(name)
  local stored = redis.call('HGET', prefix .. 'consumer-group:' .. name, 'filter')
  local whole, filter = pcall(cjson.decode, stored or '')
  if whole and type(filter) == 'table' and next(filter) ~= nil then return filter end
end

local function within(value, least, most)
  value = tonumber(value or '')
  if type(least) == 'number' and not (value and value >= least) then return false end
  return not (type(most) == 'number' and not (value and value <= most))
end

-- Whether a filter takes an entry; a condition that is not known here excludes nothing.
local function takes(filter, fields)
  if not filter then return true end
  for _, name in ipairs({'run_id', 'env'}) do
    if type(filter[name]) == 'string' and filter[name] ~= fields[name] then return false end
  end
  if filter['complete'] == true and fields['complete'] ~= '1' then return false end
  return within(fields['mean'], filter['min_mean'], filter['max_mean'])
    and within(fields['std'], filter['min_std'])
end

-- The counted groups, each with the last entry read, its oldest unacknowledged one and its filter; names of
-- others that have read.
local function readers()
  local counted, abandoned = {}, {}
  for _, flat in ipairs(redis.call('XINFO', 'GROUPS', results)) do
    local group = named(flat)
    local is_counted, has_read = counts(group['name'])
    if is_counted then
      local pending = redis.call('XPENDING', results, group['name'])
      local held = pending[1] > 0 and pending[2] or nil
      local filter = filter_of(group['name'])
      counted[#counted + 1] = {read = group['last-delivered-id'], held = held, filter = filter}
    elseif has_read then  -- before Redis 7.2 a consumer does not exist before its first entry
      abandoned[#abandoned + 1] = group['name']
    end
  end
  return counted, abandoned
end

-- Whether the group has yet to acknowledge the entry.
local function awaits(reader, id, fields)
  local behind = before(reader.read, id) or (reader.held and not before(id, reader.held))
  return behind and takes(reader.filter, fields)
end
