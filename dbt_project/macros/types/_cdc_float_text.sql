{%- macro _cdc_float_text(value, digits) -%}
case when {{ value }} = 0 or (abs({{ value }}) >= 0.001D and abs({{ value }}) < {{ '1E6D' if digits == 6 else '1E7D' }}) then
  if(endswith(cast({{ value }} as string), '.0'), substr(cast({{ value }} as string), 1, length(cast({{ value }} as string)) - 2), cast({{ value }} as string))
else element_at(transform(transform(array({{ _cdc_float_digits(value, digits) }}), j -> struct(j, regexp_replace(substring_index(j, 'E', 1), '[.]0?$', '') as m, try_cast(substring_index(j, 'E', -1) as int) as e)), f -> case
  when f.j is null then null
  when not contains(f.j, 'E') then
    {%- if digits == 6 %} case when length(regexp_extract(f.m, '^-?([0-9]+)', 1)) = 7 and not contains(f.j, 'n') then
      concat(if(startswith(f.m, '-'), '-', ''), regexp_replace(concat(substr(replace(replace(f.m, '-', ''), '.', ''), 1, 1), '.', substr(replace(replace(f.m, '-', ''), '.', ''), 2)), '[.]?0*$', ''), 'e+06')
      else f.m end
    {%- else %} f.m{% endif %}
  when f.e < -4 or f.e >= {{ digits }} then concat(f.m, 'e', if(f.e < 0, '-', '+'), if(abs(f.e) < 10, '0', ''), cast(abs(f.e) as string))
  when f.e = -4 then concat(if(startswith(f.m, '-'), '-', ''), '0.000', replace(replace(f.m, '-', ''), '.', ''))
  when length(replace(replace(f.m, '-', ''), '.', '')) <= f.e + 1 then concat(if(startswith(f.m, '-'), '-', ''), rpad(replace(replace(f.m, '-', ''), '.', ''), f.e + 1, '0'))
  else concat(if(startswith(f.m, '-'), '-', ''), substr(replace(replace(f.m, '-', ''), '.', ''), 1, f.e + 1), '.', substr(replace(replace(f.m, '-', ''), '.', ''), f.e + 2))
end), 1) end
{%- endmacro -%}
