-- The server's clock was set back by `step` seconds: move all times that were set before by as much.
local function set_back_scores(key, step)
  local flat = redis.call('ZRANGE', key, 0, -1, 'WITHSCORES')
  for i = 1, #flat, 2 do
    redis.call('ZADD', key, string.format('%.6f', tonumber(flat[i + 1]) - step), flat[i])
  end
end
local function set_back_fields(key, names, step)
  for _, name in ipairs(names) do
    local at = tonumber(redis.call('HGET', key, name) or '')
    if at then redis.call('HSET', key, name, string.format('%.6f', at - step)) end
  end
end
