-- @include healing
-- Messages that say that jobs wait in a lane, in the form of broker/enqueue.py. Each names a job, but a worker
-- may be given another one.
local QUEUE = 'v1.'
local LISTS = {'', '\6\0223', '\6\0226', '\6\0229'}

local function lists_of(lane)
  local keys = {}
  for _, step in ipairs(LISTS) do
    keys[#keys + 1] = prefix .. QUEUE .. lane .. step
    keys[#keys + 1] = prefix .. QUEUE .. lane .. '.retry' .. step
  end
  return keys
end

local function has_messages(lane) return redis.call('EXISTS', unpack(lists_of(lane))) > 0 end

local function send_tickets(lane, count, id)
  local queue, texts = QUEUE .. lane, {}
  for n = 1, count do
    -- Celery keeps running tasks by the id of their message: no two messages may have the same.
    local number = string.format('%.0f%03d', 1e6 * now, n)
    local tag = 'ticket-' .. lane .. '-' .. number
    texts[n] = '{"body":' .. cjson.encode('[["' .. id .. '",1],{},{}]')
      .. ',"content-encoding":"utf-8","content-type":"application/json","headers":'
      .. '{"task":"hermes_queue.run_trajectory","id":"' .. id .. '.' .. number .. '","argsrepr":"' .. lane .. '"},'
      .. '"properties":{"body_encoding":"utf-8","delivery_info":{"exchange":"","routing_key":"' .. queue
      .. '"},"delivery_tag":"' .. tag .. '","priority":0}}'
  end
  local binding = queue .. '\6\22\6\22' .. queue
  healing('SADD', prefix .. '_kombu.binding.' .. queue, binding)
  healing('SADD', prefix .. '_kombu.binding_permanent.' .. queue, binding)
  healing('LPUSH', prefix .. queue, unpack(texts))
end
