-- The course of a run: series:{run_id}, `width` in seconds and <number of the interval>|<field> -> sum.
-- When there are too many intervals, each two become one: any run fits, however long it is.
local FIRST_WIDTH_S, FIELDS_MOST, SLOWEST_KEPT = 60, 3000, 50

local function width_of(key) return tonumber(redis.call('HGET', key, 'width') or '') or FIRST_WIDTH_S end

local function add_moment(key, field, by)
  local interval = string.format('%.0f', math.floor(now / width_of(key)))
  redis.call('HINCRBYFLOAT', key, interval .. '|' .. field, by)
end

local function widen(key)
  if redis.call('HLEN', key) <= FIELDS_MOST then return end
  local flat, width, sums = redis.call('HGETALL', key), width_of(key), {}
  for i = 1, #flat, 2 do
    local interval, field = string.match(flat[i], '^(%d+)|(.*)$')
    if interval then
      local name = string.format('%.0f', math.floor(tonumber(interval) / 2)) .. '|' .. field
      sums[name] = (sums[name] or 0) + (tonumber(flat[i + 1]) or 0)
    end
  end
  redis.call('DEL', key)
  redis.call('HSET', key, 'width', 2 * width)
  for name, sum in pairs(sums) do redis.call('HSET', key, name, sum) end
end
