{% test cdc_between(model, column_name, low, high, length=false) %}
{%- set value = 'char_length(' ~ column_name ~ ')' if length else column_name %}
select {{ column_name }}
from {{ model }}
where {{ value }} not between {{ low }} and {{ high }}
{% endtest %}
