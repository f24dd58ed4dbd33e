-- @include time
-- Record sandboxes and renew their leases; a lost record is written again.
--
-- @key sandboxes  ids by the end of their lease
-- @arg prefix, lease_s
-- @arg record_ttl_s  how long records outlive the last renewal
-- @arg records[id, facts]  facts in JSON
-- Returns their number.
for _, sandbox in ipairs(records) do
  redis.call('ZADD', sandboxes, stamp(now + tonumber(lease_s)), sandbox.id)
  redis.call('SET', prefix .. 'sandbox:' .. sandbox.id, sandbox.facts, 'EX', record_ttl_s)
end
redis.call('EXPIRE', sandboxes, record_ttl_s)
return #records
