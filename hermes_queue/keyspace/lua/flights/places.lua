-- Places for contexts in an engine's cache.

local AHEAD = 0.7     -- a young trajectory takes this share of what the usual one takes
local MARGIN = 0.05   -- none begins in the last part of the cache, which is for those that grow
local LOOK = 200      -- of those in flight or waiting, so many are looked at in one call

local function drop(id)
  for _, key in ipairs({flying, waiting, alive}) do redis.call('ZREM', key, id) end
  redis.call('HDEL', tokens, id)
  redis.call('HDEL', wanted, id)
end

local function fly(id, since, size)
  redis.call('ZADD', flying, since == '' and stamp(now) or since, id)
  redis.call('HSET', tokens, id, size)
  redis.call('ZADD', alive, stamp(now + lease_s), id)
end

-- Stop the youngest of `mine` that exceed `most` tokens; others are stopped by their own processes.
-- Returns the places left, as {tokens that are taken, trajectories}.
local function stop_youngest(mine, most, ahead, stopped)
  local taken, actual, count = 0, 0, 0
  for _, size in ipairs(redis.call('HVALS', tokens)) do
    actual, count = actual + size, count + 1
    taken = taken + math.max(size, ahead)
  end
  if actual > most then
    for _, id in ipairs(redis.call('ZREVRANGE', flying, 0, LOOK - 1)) do
      if actual <= most or count <= tonumber(least) then break end
      local size = tonumber(redis.call('HGET', tokens, id) or '0')
      actual, count, taken = actual - size, count - 1, taken - math.max(size, ahead)
      if mine[id] then
        drop(id)
        stopped[#stopped + 1] = id
      end
    end
  end
  return {taken, count}
end

-- Let those that wait begin, the first first, while they fit in; returns 1 if one does not. A place of
-- another process is kept for it.
local function begin_first(mine, most, ahead, places, granted)
  for _, id in ipairs(redis.call('ZRANGE', waiting, 0, LOOK - 1)) do
    local size = tonumber(redis.call('HGET', wanted, id) or '0')
    local need = math.max(size, ahead)
    if places[2] >= tonumber(least) and places[1] + need > most then return 1 end
    places[1], places[2] = places[1] + need, places[2] + 1
    if mine[id] then
      local since = redis.call('ZSCORE', waiting, id)
      drop(id)
      fly(id, since, size)
      granted[#granted + 1] = id
    end
  end
  return 0
end
